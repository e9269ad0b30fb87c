package report

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/fabricd/fabricd/internal/lab/check"
)

// A Saved is a run as its report.json has it.
type Saved struct {
	dir string
	document
}

// ReadSaved reads the report.json of a directory.
func ReadSaved(dir string) (*Saved, error) {
	path := filepath.Join(dir, JSONName)
	s := &Saved{dir: dir}
	if err := readJSON(path, &s.document); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func (s *Saved) check() error {
	switch {
	case s.Version != Version:
		return fmt.Errorf("version: %d: want %d", s.Version, Version)
	case s.Result == nil || s.Curves == nil:
		return fmt.Errorf("curves: missing: the run has no history, or a fabricd before this one has written its report")
	}
	return s.Curves.check()
}

// name names the run as one of two.
func (s *Saved) name(other *Saved) string {
	b, o := s.Result.Begin, other.Result.Begin
	name := ""
	if b.Scenario != o.Scenario {
		name = b.Scenario + ", "
	}
	name += fmt.Sprintf("seed %d on %s", b.Seed, b.Lab)
	if b.Seed == o.Seed && b.Lab == o.Lab && b.Scenario == o.Scenario {
		name = filepath.Clean(s.dir)
	}
	return name
}

// Compare writes the page of two runs: their curves in one picture by the scenario's own
// clock, and their figures and verdicts beside each other.
func Compare(w io.Writer, a, b *Saved) error {
	names := [2]string{a.name(b), b.name(a)}
	p := &page{}
	title := a.Result.Begin.Scenario
	if other := b.Result.Begin.Scenario; other != title {
		title += " and " + other
	}
	p.head(title + ": two runs")
	p.f("<h1>%s: two runs</h1>\n", title)
	var runs []graphRun
	for i, s := range []*Saved{a, b} {
		class := []string{"s1", "s2"}[i]
		p.f("<p><b class=\"%s\"><i class=\"k box\"></i>%s</b> ", class, names[i])
		p.verdict(string(s.Verdict))
		p.f("<small>%s</small></p>\n<pre>%s</pre>\n", facts(s.Result, nil), command(s.Result))
		runs = append(runs, graphRun{names[i], class, s.Curves, shades(s.Faults, s.Result.Zero, s.Result.End, class)})
	}
	from, to := a.Curves.span()
	from2, to2 := b.Curves.span()
	x, marks := newAxis(min(from, from2), max(to, to2))
	p.f("<h2>What happened<small>all times are by the scenario's own clock; the faults of each run are shaded in its colour</small></h2>\n<div class=\"wide\">\n")
	p.graph(&graph{x, marks, runs})
	p.f("</div>\n")
	p.figureTable([]named{{names[0], a.Result.Figures}, {names[1], b.Result.Figures}}, true)
	p.differences(names, a.Result, b.Result)
	p.foot()
	_, err := io.WriteString(w, p.String())
	return err
}

// differences lists the judgements that are not the same in both runs, and those that are
// violated in either.
func (p *page) differences(names [2]string, a, b *check.Result) {
	type pair struct{ of [2]*check.Judgement }
	var all []pair
	for i, r := range []*check.Result{a, b} {
		for _, j := range slices.Concat(r.Expectations, r.Invariants) {
			at := slices.IndexFunc(all, func(x pair) bool {
				o := x.of[0]
				return o != nil && x.of[i] == nil && o.Name == j.Name && o.Claim == j.Claim
			})
			if at < 0 {
				all, at = append(all, pair{}), len(all)
			}
			all[at].of[i] = &j
		}
	}
	same := 0
	rows := slices.DeleteFunc(all, func(x pair) bool {
		alike := x.of[0] != nil && x.of[1] != nil && x.of[0].Verdict == x.of[1].Verdict && x.of[0].Verdict != check.Violated
		if alike {
			same++
		}
		return alike
	})
	p.f("<h2>Verdicts<small>%d are the same in both runs</small></h2>\n", same)
	if len(rows) == 0 {
		p.f("<p class=\"mute\">No other.</p>\n")
		return
	}
	p.f("<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">%s</th><th scope=\"col\">%s</th><th scope=\"col\">name</th><th scope=\"col\">claim</th></tr></thead>\n<tbody>\n", names[0], names[1])
	for _, x := range rows {
		var one *check.Judgement
		p.f("<tr>")
		for _, j := range x.of {
			p.f("<td>")
			if j == nil {
				p.f("<span class=\"mute\">not judged</span>")
			} else {
				one = j
				p.verdict(string(j.Verdict))
			}
			p.f("</td>")
		}
		p.f("<td>%s</td><td>%s</td></tr>\n", one.Name, one.Claim)
	}
	p.f("</tbody>\n</table></div>\n")
}
