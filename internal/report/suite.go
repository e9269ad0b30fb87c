package report

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/check"
	"github.com/fabricd/fabricd/internal/scenario"
)

// The files of a suite.
const (
	SuiteJSONName = "suite.json"
	SuiteHTMLName = "suite.html"
)

// A Suite is many runs together.
type Suite struct {
	Title string  `json:"title,omitempty"`
	Build string  `json:"build,omitempty"`
	Took  float64 `json:"took_seconds,omitempty"`
	Rows  []Entry `json:"scenarios"`
}

// An Entry is what became of one scenario in one lab, over all its runs.
type Entry struct {
	Scenario string         `json:"scenario"`
	Lab      scenario.Lab   `json:"lab"`
	About    string         `json:"about,omitempty"`
	Rows     []scenario.Row `json:"rows,omitempty"`
	Runs     int            `json:"runs"`
	Green    int            `json:"green"`
	Broken   []uint64       `json:"broken,omitempty"`  // seeds
	Harness  []uint64       `json:"harness,omitempty"` // seeds
	Figures  []check.Figure `json:"figures,omitempty"` // over all runs; samples may be left out
	// Report is where the page of one of its runs is, relative to the suite's;
	// empty: nowhere.
	Report string `json:"report,omitempty"`
}

// Verdict returns the word on the entry.
func (e *Entry) Verdict() Verdict {
	switch {
	case len(e.Broken) > 0:
		return Broken
	case len(e.Harness) > 0 || e.Runs == 0:
		return Harness
	}
	return Green
}

// WriteSuite writes the files of a suite to a directory, which it makes.
func WriteSuite(dir string, s *Suite) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, SuiteJSONName), b.Bytes(), 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, SuiteHTMLName), func(w io.Writer) error { return SuiteHTML(w, s) })
}

// SuiteHTML writes the page of a suite.
func SuiteHTML(w io.Writer, s *Suite) error {
	p := &page{}
	title := s.Title
	if title == "" {
		title = "Scenarios"
	}
	p.head(title)
	p.f("<h1>%s</h1>\n", title)
	runs, green := 0, 0
	for _, e := range s.Rows {
		runs, green = runs+e.Runs, green+e.Green
	}
	p.f("<p>%d of %d runs are green", green, runs)
	if s.Took > 0 {
		p.f(", in %.0f s", s.Took)
	}
	if s.Build != "" {
		p.f(", fabricd %s", s.Build)
	}
	p.f(".</p>\n")
	p.matrix(s)
	p.suiteFigures(s)
	p.foot()
	_, err := io.WriteString(w, p.String())
	return err
}

// matrix shows scenarios against labs.
func (p *page) matrix(s *Suite) {
	labs, names := s.labs(), s.names()
	p.f("<h2>Verdicts</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">scenario</th><th scope=\"col\">shows</th>")
	for _, l := range labs {
		p.f("<th scope=\"col\">%s</th>", string(l))
	}
	p.f("</tr></thead>\n<tbody>\n")
	for _, name := range names {
		first := s.find(name, "")
		p.f("<tr><td>%s<br><span class=\"mute\">%s</span></td><td class=\"mute\">%s</td>", name, first.About, rowsText(first.Rows))
		for _, l := range labs {
			p.f("<td>")
			if e := s.find(name, l); e != nil {
				p.cell(e)
			}
			p.f("</td>")
		}
		p.f("</tr>\n")
	}
	p.f("</tbody>\n</table></div>\n")
}

// cell shows one scenario in one lab.
func (p *page) cell(e *Entry) {
	if e.Report != "" {
		p.f("<a href=\"%s\">", e.Report)
	}
	p.verdict(string(e.Verdict()))
	if e.Report != "" {
		p.f("</a>")
	}
	p.f(" %d/%d", e.Green, e.Runs)
	if len(e.Broken) > 0 {
		p.f("<br><span class=\"bad\">seeds %s</span>", seedText(e.Broken))
	}
	if len(e.Harness) > 0 {
		p.f("<br><span class=\"warn\">lab failed: %s</span>", seedText(e.Harness))
	}
}

// suiteFigures lists the figures of all scenarios.
func (p *page) suiteFigures(s *Suite) {
	p.f("<h2>Figures</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">scenario</th><th scope=\"col\">lab</th><th scope=\"col\">figure</th><th scope=\"col\">of</th><th scope=\"col\" class=\"n\">samples</th><th scope=\"col\" class=\"n\">p50</th><th scope=\"col\" class=\"n\">p99</th><th scope=\"col\" class=\"n\">max</th></tr></thead>\n<tbody>\n")
	for _, e := range s.Rows {
		for _, f := range e.Figures {
			if f.Count == 0 {
				continue
			}
			show := dur
			if f.Name == scenario.Throughput {
				show = amount
			}
			p.f("<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td class=\"n\">%d</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td></tr>\n",
				e.Scenario, string(e.Lab), string(f.Name), f.Of, f.Count, show(f.P50), show(f.P99), show(f.Max))
		}
	}
	p.f("</tbody>\n</table></div>\n")
}

// labs returns the labs of a suite, the cheapest first.
func (s *Suite) labs() []scenario.Lab {
	var all []scenario.Lab
	for _, l := range scenario.Labs {
		if slices.ContainsFunc(s.Rows, func(e Entry) bool { return e.Lab == l }) {
			all = append(all, l)
		}
	}
	return all
}

// names returns the scenarios of a suite, sorted.
func (s *Suite) names() []string {
	var all []string
	for _, e := range s.Rows {
		all = append(all, e.Scenario)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// find returns the entry of a scenario in a lab, or in any if that is empty.
func (s *Suite) find(name string, lab scenario.Lab) *Entry {
	for i := range s.Rows {
		if e := &s.Rows[i]; e.Scenario == name && (lab == "" || e.Lab == lab) {
			return e
		}
	}
	return nil
}

func rowsText(rows []scenario.Row) string {
	var all []string
	for _, r := range rows {
		all = append(all, string(r))
	}
	return strings.Join(all, " ")
}

// seedText lists seeds, the first of them if there are many.
func seedText(seeds []uint64) string {
	words := make([]string, len(seeds))
	for i, s := range seeds {
		words[i] = uintText(s)
	}
	return join(words, ", ", 8)
}
