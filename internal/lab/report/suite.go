package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A Suite is many runs together.
type Suite struct {
	Title string    `json:"title,omitempty"`
	Build string    `json:"build,omitempty"`
	Labs  []LabTime `json:"labs,omitempty"`
	Rows  []Entry   `json:"scenarios"`
	// Losses is how soon lost nodes were missed. It follows from Rows and is made
	// anew whenever the suite is written.
	Losses []Loss `json:"losses,omitempty"`
	// Scale are pictures of how clusters grow, as HTML; empty: there are none.
	Scale []byte `json:"-"`
}

// A LabTime is how long a lab has taken for its runs.
type LabTime struct {
	Lab  scenario.Lab `json:"lab"`
	Runs int          `json:"runs"`
	Took float64      `json:"took_seconds"`
	// LeftOut lists which scenarios were not run there, and why, a line each.
	LeftOut []string `json:"left_out,omitempty"`
}

// An Entry is the outcome of one scenario in one lab, over all its runs.
type Entry struct {
	Scenario string          `json:"scenario"`
	Lab      scenario.Lab    `json:"lab"`
	About    string          `json:"about,omitempty"`
	Rows     []scenario.Name `json:"rows,omitempty"`
	// Detection and Nodes are those of the cluster.
	Detection scenario.Detection `json:"detection,omitempty"`
	Nodes     int                `json:"nodes,omitempty"`

	// Daemons describes how the daemons ran ([history.Begin].Paths), and Paths how many
	// connections of all runs went over to a path.
	Daemons string `json:"daemons,omitempty"`
	Paths   int    `json:"paths,omitempty"`

	Runs    int            `json:"runs"`
	Green   int            `json:"green"`
	Broken  []uint64       `json:"broken,omitempty"`  // seeds
	Harness []uint64       `json:"harness,omitempty"` // seeds
	Figures []check.Figure `json:"figures,omitempty"` // over all runs, without samples
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

// WriteSuite writes a suite to a directory, which it makes: name.json and name.html.
func WriteSuite(dir, name string, s *Suite) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	s.Losses = s.losses()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), b.Bytes(), 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, name+".html"), func(w io.Writer) error { return SuiteHTML(w, s) })
}

// ReadSuite reads the file that WriteSuite has written.
func ReadSuite(path string) (*Suite, error) {
	var s Suite
	if err := readJSON(path, &s); err != nil {
		return nil, err
	}
	for _, e := range s.Rows {
		if !slices.Contains(scenario.Labs, e.Lab) {
			return nil, fmt.Errorf("%s: lab %q: want one of %v", path, e.Lab, scenario.Labs)
		}
		if e.Report != "" && !filepath.IsLocal(e.Report) {
			return nil, fmt.Errorf("%s: report %q: want a path below the suite's", path, e.Report)
		}
	}
	return &s, nil
}

// Join adds the runs of another suite, which is in the directory dir below this
// one's.
func (s *Suite) Join(o *Suite, dir string) {
	if s.Build == "" {
		s.Build = o.Build
	}
	s.Labs = append(s.Labs, o.Labs...)
	for _, e := range o.Rows {
		if e.Report != "" {
			e.Report = filepath.ToSlash(filepath.Join(dir, e.Report))
		}
		s.Rows = append(s.Rows, e)
	}
	slices.SortStableFunc(s.Labs, func(a, b LabTime) int { return byLab(a.Lab, b.Lab) })
	slices.SortStableFunc(s.Rows, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Scenario, b.Scenario), byLab(a.Lab, b.Lab)) })
}

// byLab orders labs, the cheapest first.
func byLab(a, b scenario.Lab) int {
	return cmp.Compare(slices.Index(scenario.Labs, a), slices.Index(scenario.Labs, b))
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
	if s.Build != "" {
		p.f(", fabricd %s", s.Build)
	}
	p.f(".</p>\n<ul>\n")
	for _, l := range s.Labs {
		p.f("<li>%s: %d runs in %.0f s, %.0f a minute</li>\n", string(l.Lab), l.Runs, l.Took, float64(l.Runs)/max(l.Took/60, 1e-9))
		for _, why := range l.LeftOut {
			p.f("<li>%s: left out: %s</li>\n", string(l.Lab), why)
		}
	}
	p.f("</ul>\n")
	p.matrix(s)
	p.lossTable(s.losses())
	p.suiteFigures(s)
	if len(s.Scale) > 0 {
		p.f("<h2>Scale<small>clusters of several sizes, simulated</small></h2>\n<div class=\"wide\">\n%s</div>\n", raw(s.Scale))
	}
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
	if text := Paths(e.Daemons, e.Paths); text != "" {
		p.f("<br><span class=\"mute\">%s</span>", text)
	}
	if len(e.Broken) > 0 {
		p.f("<br><span class=\"bad\">seeds %s</span>", Seeds(e.Broken))
	}
	if len(e.Harness) > 0 {
		p.f("<br><span class=\"warn\">lab failed: %s</span>", Seeds(e.Harness))
	}
}

// suiteFigures lists the figures of all scenarios.
func (p *page) suiteFigures(s *Suite) {
	var sets []named
	for _, e := range s.Rows {
		sets = append(sets, named{e.Scenario + " on " + string(e.Lab), e.Figures})
	}
	p.figureTable(sets, false)
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

func rowsText(rows []scenario.Name) string { return strings.Trim(fmt.Sprint(rows), "[]") }

// Seeds lists seeds, the first of them if there are many.
func Seeds(seeds []uint64) string {
	words := make([]string, len(seeds))
	for i, s := range seeds {
		words[i] = fmt.Sprint(s)
	}
	return join(words, ", ", 8)
}
