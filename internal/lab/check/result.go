package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A Verdict is the finding of a machine.
type Verdict string

const (
	// Held: there was something to judge, and it was right.
	Held Verdict = "held"
	// Violated: something was wrong.
	Violated Verdict = "violated"
	// NotExercised: there was nothing to judge.
	NotExercised Verdict = "not exercised"
)

// Limits of a [Judgement].
const (
	MaxViolations = 20 // that are described; all are counted
	MaxProof      = 20 // records of one violation
)

// A Violation is one thing that is wrong, with the records that prove it.
type Violation struct {
	At    int64            `json:"at"` // ns
	What  string           `json:"what"`
	Proof []history.Record `json:"-"`
	Lines []string         `json:"proof,omitempty"` // Proof, as JSON lines
}

// A Judgement is the verdict on one invariant or one expectation.
type Judgement struct {
	Name       string      `json:"name"`
	Rows       string      `json:"rows,omitempty"` // of the failure model: "I5"
	Claim      string      `json:"claim"`
	Verdict    Verdict     `json:"verdict"`
	Checked    int         `json:"checked"`           // how many times something was judged
	Count      int         `json:"count"`             // of violations
	Excused    int         `json:"excused,omitempty"` // of these, those that came late by no more than the lab stood still
	Violations []Violation `json:"violations,omitempty"`
}

// A Figure is one figure of a run.
type Figure struct {
	Name scenario.FigureName `json:"name"`
	// Of is the kind of fault that the samples are of; empty: all of them.
	Of      string  `json:"of,omitempty"`
	Count   int     `json:"count"`
	Why     string  `json:"why,omitempty"` // there is no sample
	Min     int64   `json:"min"`
	P50     int64   `json:"p50"`
	P99     int64   `json:"p99"`
	Max     int64   `json:"max"`
	Samples []int64 `json:"samples,omitempty"` // sorted; at most MaxSamples, evenly chosen, the largest among them
}

// String returns the figure as a line for people. Most are times.
func (f Figure) String() string {
	show := func(v int64) string {
		if f.Name == scenario.Throughput {
			return fmt.Sprintf("%d B/s", v)
		}
		return time.Duration(v).Round(10 * time.Microsecond).String()
	}
	name := string(f.Name)
	if f.Of != "" {
		name += " (" + f.Of + ")"
	}
	if f.Count == 0 {
		return fmt.Sprintf("%-40s no sample: %s", name, f.Why)
	}
	return fmt.Sprintf("%-40s p50 %-10s p99 %-10s max %-10s of %d", name, show(f.P50), show(f.P99), show(f.Max), f.Count)
}

// MaxSamples bounds the samples of a [Figure].
const MaxSamples = 2000

// A Result is all that is to be said of a run.
type Result struct {
	Begin        history.Begin `json:"begin"`
	Zero         int64         `json:"zero"`    // when the scenario's own clock began ([history.Timeline]), ns
	End          int64         `json:"end"`     // time of the last record, ns
	Records      int           `json:"records"` // of the history
	Paths        int           `json:"paths"`   // connections that went over to a path, as far as they were seen
	Stall        int64         `json:"still"`   // for how long at most the lab itself stood still, ns
	Invariants   []Judgement   `json:"invariants"`
	Expectations []Judgement   `json:"expectations,omitempty"`
	Figures      []Figure      `json:"figures,omitempty"`
}

// OK reports whether nothing is violated and every expectation was exercised.
func (r *Result) OK() bool {
	bad := func(j Judgement) bool { return j.Verdict == Violated }
	vain := func(j Judgement) bool { return j.Verdict != Held }
	return !slices.ContainsFunc(r.Invariants, bad) && !slices.ContainsFunc(r.Expectations, vain)
}

// Invariant returns the judgement of an invariant by its name.
func (r *Result) Invariant(name string) (Judgement, bool) {
	i := slices.IndexFunc(r.Invariants, func(j Judgement) bool { return j.Name == name })
	if i < 0 {
		return Judgement{}, false
	}
	return r.Invariants[i], true
}

// Problems returns one line for everything that is not as it should be. Times are those
// of the scenario's own clock.
func (r *Result) Problems() []string {
	var all []string
	for _, j := range slices.Concat(r.Invariants, r.Expectations) {
		for _, v := range j.Violations {
			all = append(all, fmt.Sprintf("%s: at %s: %s", j.Name, time.Duration(v.At-r.Zero), v.What))
		}
		if j.Count > len(j.Violations) {
			all = append(all, fmt.Sprintf("%s: and %d more", j.Name, j.Count-len(j.Violations)))
		}
	}
	for _, j := range r.Expectations {
		if j.Verdict == NotExercised {
			all = append(all, fmt.Sprintf("%s: not exercised: %s", j.Name, j.Claim))
		}
	}
	return all
}

// A judge collects the findings of one machine.
type judge struct {
	w *world
	j Judgement
}

// see and finish are those of a machine that has nothing to do there.
func (g *judge) see(int, *history.Record) {}
func (g *judge) finish()                  {}

// good counts something that was judged.
func (g *judge) good() { g.j.Checked++ }

// fail reports something wrong, proved by records (indexes in the history; -1:
// none).
func (g *judge) fail(at int64, proof []int, format string, args ...any) {
	g.j.Checked++
	g.j.Count++
	if len(g.j.Violations) == MaxViolations {
		return
	}
	v := Violation{At: at, What: fmt.Sprintf(format, args...)}
	for _, i := range proof {
		if i >= 0 && len(v.Proof) < MaxProof {
			v.Proof = append(v.Proof, g.w.records[i])
		}
	}
	for _, r := range v.Proof {
		line, err := history.Append(nil, r)
		if err != nil {
			line = fmt.Appendf(nil, "%+v\n", r.Body)
		}
		v.Lines = append(v.Lines, string(line[:len(line)-1]))
	}
	g.j.Violations = append(g.j.Violations, v)
}

// unless judges one thing.
func (g *judge) unless(ok bool, at int64, proof []int, format string, args ...any) {
	if ok {
		g.good()
		return
	}
	g.fail(at, proof, format, args...)
}

// inTime judges that something which could happen from a time on came by a limit, at a time: never
// if it never came.
func (g *judge) inTime(from, limit, at int64, proof []int, format string, args ...any) {
	g.unless(at <= limit, from, proof, format, args...)
	g.late(from, limit, at)
}

// judgement closes the judge.
func (g *judge) judgement() Judgement {
	switch {
	case g.j.Count > 0:
		g.j.Verdict = Violated
	case g.j.Checked > 0:
		g.j.Verdict = Held
	default:
		g.j.Verdict = NotExercised
	}
	return g.j
}
