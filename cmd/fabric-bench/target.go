package main

import (
	"fmt"
	"slices"
	"strings"
)

// The verdicts of a target.
const (
	targetReached  = "reached"
	targetMissed   = "NOT reached"
	targetUnknown  = "not measured"
	targetNone     = "for comparison"
	targetsHeading = "Targets of the design: ours beside the anchor, in turns, on the same cores; ours and anchor are min/median/max of the repetitions"
)

// A Target is a row of the design's table: ours beside one anchor, or beside a
// bound.
type Target struct {
	Key     string  `json:"key"` // of the contest, as `anchors` takes it
	What    string  `json:"what"`
	Ours    Spread  `json:"ours"`
	Anchor  string  `json:"anchor"` // empty: the target is a bound in Unit
	Raw     Spread  `json:"raw"`    // of the anchor
	Unit    string  `json:"unit"`
	Ratio   Spread  `json:"ratio"` // ours/anchor, repetition by repetition
	AtMost  *figure `json:"target_at_most,omitempty"`
	AtLeast *figure `json:"target_at_least,omitempty"`
	Verdict string  `json:"verdict"`
	Why     string  `json:"why,omitempty"` // it is not measured
}

// A Spread is what the repetitions of a figure were.
type Spread struct {
	Min    figure   `json:"min"`
	Median figure   `json:"median"`
	Max    figure   `json:"max"`
	PerRep []figure `json:"per_rep,omitempty"`
}

func spreadOf(v []figure) Spread {
	if len(v) == 0 {
		return Spread{absent, absent, absent, nil}
	}
	return Spread{slices.Min(v), median(v), slices.Max(v), v}
}

func (s Spread) String() string {
	switch {
	case !s.Median.measured():
		return "-"
	case len(s.PerRep) == 1:
		return short(s.Median)
	}
	return fmt.Sprintf("%s/%s/%s", short(s.Min), short(s.Median), short(s.Max))
}

// judge sets the verdict: of the median ratio to the anchor, or, where there is
// none, of the median itself. What is for comparison may be beside nothing, which
// has no ratio.
func (t Target) judge() Target {
	value := t.Ratio.Median
	if t.Anchor == "" {
		value = t.Ours.Median
	}
	bounded := t.AtMost != nil || t.AtLeast != nil
	if !bounded && t.Raw.Median.measured() {
		value = t.Ours.Median
	}
	switch {
	case t.Why != "" || !value.measured():
		t.Verdict = targetUnknown
	case t.AtMost != nil && value <= *t.AtMost, t.AtLeast != nil && value >= *t.AtLeast:
		t.Verdict = targetReached
	case !bounded:
		t.Verdict = targetNone
	default:
		t.Verdict = targetMissed
	}
	return t
}

// distance says how far a target that is not reached is away; otherwise it is
// the verdict.
func (t Target) distance() string {
	value := t.Ratio.Median
	if t.Anchor == "" {
		value = t.Ours.Median
	}
	switch {
	case t.Verdict == targetUnknown:
		return targetUnknown + ": " + t.Why
	case t.Verdict != targetMissed:
		return t.Verdict
	case t.AtMost != nil && *t.AtMost > 0:
		return fmt.Sprintf("%s: %.2f× the target", targetMissed, float64(value / *t.AtMost))
	case t.AtLeast != nil:
		return fmt.Sprintf("%s: %.2f× the target", targetMissed, float64(value / *t.AtLeast))
	}
	return targetMissed
}

// bound writes the target.
func (t Target) bound() string {
	unit := "×"
	if t.Anchor == "" {
		unit = " " + t.Unit
	}
	switch {
	case t.AtMost != nil:
		return fmt.Sprintf("≤ %v%s", *t.AtMost, unit)
	case t.AtLeast != nil:
		return fmt.Sprintf("≥ %v%s", *t.AtLeast, unit)
	}
	return ""
}

// targets prints the design's table.
func (t *table) targets(all []Target) {
	if len(all) == 0 {
		return
	}
	t.title("\n%s", targetsHeading)
	t.row("what", "ours", "anchor", "anchor's", "of", "ours/anchor", "target", "verdict")
	counts := map[string]int{}
	for _, q := range all {
		counts[q.Verdict]++
		t.row(q.What, q.Ours.String(), q.Anchor, q.Raw.String(), q.Unit, q.Ratio.String(), q.bound(), clip(q.distance()))
	}
	t.title("%d reached, %d not reached, %d not measured, %d for comparison",
		counts[targetReached], counts[targetMissed], counts[targetUnknown], counts[targetNone])
}

// clip keeps what fits into a table's cell.
func clip(s string) string {
	const most = 90
	s = strings.ReplaceAll(s, "\n", " ")
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

func atMostOf(f figure) *figure { return &f }
