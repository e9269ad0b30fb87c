package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// A timeline prints the steps of the demo, one line or JSON object per step.
type timeline struct {
	out    io.Writer
	json   bool
	began  time.Time
	last   time.Time
	steps  int
	failed int
	broken error           // why a step could not be printed
	ctx    context.Context // of the command; its end is an interrupt, and no wrong step
}

func newTimeline(ctx context.Context, out io.Writer, asJSON bool) *timeline {
	now := time.Now()
	return &timeline{out: out, json: asJSON, began: now, last: now, ctx: ctx}
}

func (t *timeline) interrupted() bool { return t.ctx.Err() != nil }

// A step is one line of the timeline.
type step struct {
	Step   int     `json:"step"`
	AtMS   float64 `json:"at_ms"`   // since the beginning
	TookMS float64 `json:"took_ms"` // since the step before
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Detail string  `json:"detail,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// scene prints a heading; in JSON there is none.
func (t *timeline) scene(title string) {
	if t.json {
		return
	}
	if t.steps > 0 {
		fmt.Fprintln(t.out)
	}
	fmt.Fprintln(t.out, title)
}

// step records a step that was done and checked, or its error. It returns err, or why
// a step could not be printed: nobody reads the rest.
func (t *timeline) step(name, detail string, err error) error {
	now := time.Now()
	t.steps++
	s := step{t.steps, ms(now.Sub(t.began)), ms(now.Sub(t.last)), name, err == nil, detail, ""}
	t.last = now
	mark := "ok  "
	if err != nil && t.interrupted() {
		s.Error, detail, mark = "interrupted", "interrupted", "    "
	} else if err != nil {
		t.failed++
		s.Error = err.Error()
		mark = "FAIL"
		detail = err.Error()
	}
	if t.json {
		t.broken = cmp.Or(t.broken, json.NewEncoder(t.out).Encode(s))
	} else {
		text := fmt.Sprintf("  %7.3f s  %s  %-34s %s", s.AtMS/1000, mark, name, detail)
		_, werr := fmt.Fprintln(t.out, strings.TrimRight(text, " "))
		t.broken = cmp.Or(t.broken, werr)
	}
	return cmp.Or(err, t.broken)
}

// close prints the outcome.
func (t *timeline) close() {
	took := time.Since(t.began)
	if t.json {
		_ = json.NewEncoder(t.out).Encode(map[string]any{
			"summary": true, "ok": t.failed == 0 && !t.interrupted(), "steps": t.steps, "failed": t.failed, "took_ms": ms(took)}) // as in step
		return
	}
	verdict := "every step was right"
	if t.interrupted() {
		verdict = "interrupted"
	}
	if t.failed > 0 {
		verdict = fmt.Sprintf("%d of them wrong", t.failed)
	}
	fmt.Fprintf(t.out, "\n%d steps in %.1f s, %s\n", t.steps, took.Seconds(), verdict)
}

// ms returns d in milliseconds with three digits behind the point.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
