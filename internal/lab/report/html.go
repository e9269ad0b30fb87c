package report

import (
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"io"
	"strings"

	"github.com/fabricd/fabricd/internal/chart"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// Limits of a page.
const (
	maxListed = 200 // faults, and rows of a suite's scenario
	maxShown  = 5   // violations of one judgement, with their proof
)

//go:embed pages.html
var pagesHTML string

// pages are the templates of all pages.
var pages = template.Must(template.New("pages").Funcs(template.FuncMap{
	"style": func() template.CSS { return chart.Style }, "verdict": verdict, "dur": dur,
	"facts": facts, "command": command, "paths": Paths, "seeds": Seeds, "rows": rowsText, "lines": shortLines,
	"source":  func(s *scenario.Scenario) string { return string(scenario.Encode(s)) },
	"shown":   func() int { return maxShown },
	"left":    func(all []string) int { return max(len(all)-maxShown, 0) },
	"unshown": func(j check.Judgement) int { return j.Count - min(len(j.Violations), maxShown) },
}).Parse(pagesHTML))

// writePage writes a page by one of the templates.
func writePage(w io.Writer, name string, data any) error {
	var b strings.Builder
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	_, err := io.WriteString(w, clean(b.String()))
	return err
}

// clean takes out characters that XML does not allow.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == 0xFFFE || r == 0xFFFF {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// verdict shows a word with a sign, so that it does not need its colour.
func verdict(word any) template.HTML {
	text := fmt.Sprint(word)
	v := map[string]struct{ sign, class string }{
		"green": {"✓", "good"}, "held": {"✓", "good"}, "met": {"✓", "good"},
		"broken": {"✗", "bad"}, "violated": {"✗", "bad"}, "missed": {"✗", "bad"}, "harness": {"!", "warn"},
		"not exercised": {"–", "mute"}, "no sample": {"–", "mute"},
	}[text]
	return template.HTML(fmt.Sprintf("<span class=\"v %s\">%s %s</span>", v.class, v.sign, html.EscapeString(text)))
}

// A runPage is the data of a run's page.
type runPage struct {
	*Run
	Title      string
	Timeline   template.HTML
	LeftOut    string // of the timeline
	Graph      template.HTML
	Figures    figureTable
	Faults     []faultRow
	MoreFaults int
	zero       int64
}

// A faultRow is a row of the table of faults.
type faultRow struct{ From, To, What, Touches, May, Did string }

// HTML writes the page of a run. It is one file that needs nothing else. All times are
// by the scenario's own clock.
func HTML(w io.Writer, r *Run) error {
	r = r.whole()
	b := r.Result.Begin
	s := newScene(&b, r.Records, r.Result.Zero)
	p := runPage{Run: r, Title: fmt.Sprintf("%s on %s, seed %d", b.Scenario, b.Lab, b.Seed), Timeline: drawTimeline(s), LeftOut: s.leftOut(),
		Figures: newFigureTable([]named{{"", r.Result.Figures}}, false), MoreFaults: max(len(s.faults)-maxListed, 0), zero: s.zero}
	if c := newCurves(r.Records, r.Result.Zero, r.Result.End); c != nil {
		x, marks := newAxis(-s.zero, s.end)
		p.Graph = drawGraph(&graph{x, marks, []graphRun{{"", "s1", c, shades(s.entries(), s.zero, s.end+s.zero, "")}}})
	}
	for _, f := range s.faults[:min(len(s.faults), maxListed)] {
		p.Faults = append(p.Faults, s.row(f))
	}
	return writePage(w, "run", p)
}

// row describes a fault.
func (s *scene) row(f *sceneFault) faultRow {
	to := "–"
	if f.ended {
		to = dur(f.to)
	}
	may := map[history.Harm]string{history.HarmNone: "slow down", history.HarmReset: "reset", history.HarmRemove: "remove"}[f.Harm]
	return faultRow{From: dur(f.from), To: to, What: f.What, Touches: s.touches(f), May: may, Did: f.outcome()}
}

// leftOut says what the timeline does not show, if there is too much of it.
func (s *scene) leftOut() (text string) {
	if len(s.streams) > maxStreams {
		text += fmt.Sprintf(" %d of %d slots are shown.", maxStreams, len(s.streams))
	}
	if len(s.faults) > maxFaults {
		text += fmt.Sprintf(" The first %d of %d faults are shown.", maxFaults, len(s.faults))
	}
	return text
}

// A judgements is the data of a table of verdicts with the proofs of the bad ones.
type judgements struct {
	Title string
	All   []check.Judgement
	zero  int64
}

// Judged returns the table of some verdicts.
func (p runPage) Judged(title string, all []check.Judgement) judgements {
	return judgements{title, all, p.zero}
}

// Clock returns a time of the run by the scenario's clock.
func (j judgements) Clock(at int64) string { return dur(at - j.zero) }

// facts describe the run, in a line.
func facts(r *check.Result, s *scenario.Scenario) string {
	b := r.Begin
	all := []string{"lab " + b.Lab, "seed " + fmt.Sprint(b.Seed), fmt.Sprintf("%d nodes, detection %s", b.Nodes, b.Detection),
		fmt.Sprintf("%s long, with %s to start", dur(r.End-r.Zero), dur(r.Zero)), fmt.Sprintf("%d records", r.Records)}
	if text := Paths(b.Paths, r.Paths); text != "" {
		all = append(all, text)
	}
	if r.Stall > 0 {
		all = append(all, "the lab itself stood still for at most "+dur(r.Stall))
	}
	if b.Build != "" {
		all = append(all, "fabricd "+b.Build)
	}
	if b.Started != "" {
		all = append(all, "started "+b.Started)
	}
	if s != nil && len(s.Rows) > 0 {
		all = append(all, "shows "+rowsText(s.Rows))
	}
	return strings.Join(all, " · ")
}

// Paths says how the daemons of a real lab ran ([history.Begin].Paths), and how many
// connections went over to a path; nothing of a simulation.
func Paths(daemons string, n int) string {
	switch daemons {
	case history.PathsLazy:
		return fmt.Sprintf("%d connections on paths", n)
	case history.PathsOff:
		return "faults enabled: no paths"
	}
	return ""
}

// command returns the command that repeats the run.
func command(r *check.Result) string {
	b := r.Begin
	if b.Command != "" {
		return b.Command
	}
	return "fabricd chaos run " + ScenarioName + " --on " + b.Lab + " --seed " + fmt.Sprint(b.Seed)
}

// shortLines joins records, each at most 600 bytes.
func shortLines(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		if len(l) > 600 {
			l = strings.ToValidUTF8(l[:600], "") + "…"
		}
		b.WriteString(l + "\n")
	}
	return b.String()
}
