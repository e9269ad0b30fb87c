package report

import (
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"slices"

	"github.com/fabricd/fabricd/internal/lab/check"
)

// A Saved is a run as its report.json tells it.
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

// A comparePage is the data of the page of two runs.
type comparePage struct {
	Title   string
	Runs    [2]comparedRun
	Graph   template.HTML
	Figures figureTable
	Same    int // judgements
	Others  []comparedJudgement
}

// A comparedRun is one of two runs, with the class of its colour.
type comparedRun struct {
	*Saved
	Name, Class string
}

// A comparedJudgement is a judgement on two runs; empty: it was not judged.
type comparedJudgement struct {
	Name, Claim string
	Verdicts    [2]check.Verdict
}

// Compare writes the page of two runs: their curves in one picture by the scenario's own
// clock, and their figures and verdicts beside each other.
func Compare(w io.Writer, a, b *Saved) error {
	p := comparePage{Title: a.Result.Begin.Scenario, Runs: [2]comparedRun{{a, a.name(b), "s1"}, {b, b.name(a), "s2"}}}
	if other := b.Result.Begin.Scenario; other != p.Title {
		p.Title += " and " + other
	}
	p.Title += ": two runs"
	g := &graph{}
	var sets []named
	for _, r := range p.Runs {
		g.runs = append(g.runs, graphRun{r.Name, r.Class, r.Curves, shades(r.Faults, r.Result.Zero, r.Result.End, r.Class)})
		sets = append(sets, named{r.Name, r.Result.Figures})
	}
	from, to := a.Curves.span()
	from2, to2 := b.Curves.span()
	g.x, g.marks = newAxis(min(from, from2), max(to, to2))
	p.Graph, p.Figures = drawGraph(g), newFigureTable(sets, true)
	p.Same, p.Others = differences(a.Result, b.Result)
	return writePage(w, "compare", p)
}

// differences returns how many judgements are the same in both runs, and those that are not or are
// violated.
func differences(a, b *check.Result) (same int, others []comparedJudgement) {
	for i, r := range []*check.Result{a, b} {
		for _, j := range slices.Concat(r.Expectations, r.Invariants) {
			at := slices.IndexFunc(others, func(x comparedJudgement) bool {
				return i == 1 && x.Verdicts[1] == "" && x.Name == j.Name && x.Claim == j.Claim
			})
			if at < 0 {
				others, at = append(others, comparedJudgement{Name: j.Name, Claim: j.Claim}), len(others)
			}
			others[at].Verdicts[i] = j.Verdict
		}
	}
	all := len(others)
	others = slices.DeleteFunc(others, func(x comparedJudgement) bool {
		return x.Verdicts[0] == x.Verdicts[1] && x.Verdicts[0] != check.Violated
	})
	return all - len(others), others
}
