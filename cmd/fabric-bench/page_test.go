package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestThePageSaysWhatIsReached: the headline counts the verdicts, and each row has its
// own, its target and a bar.
func TestThePageSaysWhatIsReached(t *testing.T) {
	good := row("messages", megabytes, []figure{1, 2, 3}, []figure{2, 2, 2})
	good.Target, good.CPUTarget = to(0.95), to(1.15)
	good.CPU = map[string][]figure{carryFabric: {3, 3, 3}, carryTLS: {1, 1, 1}}
	bound := row("<idle>", micros, []figure{5, 5, 5}, nil)
	bound.Baseline, bound.Target, bound.Setup = "", to(10), "no lab"
	gone := row("more", megabytes, nil, nil)
	gone.Why, gone.Target = "it is not installed", to(1)
	d := &Report{Schema: reportSchema, Rows: []Row{good, bound, gone}}
	var text bytes.Buffer
	if err := d.writePage(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<h1>2 of 4 targets reached, 1 not measured</h1>", "≥ 0.95×", ">1.00×<", ">3.00×<", ">0.50×<", "&lt;idle&gt;", "messages: processor time",
		"it is not installed", `class="verdict bad"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(text.String(), "<idle>") || strings.Contains(text.String(), "NaN") {
		t.Errorf("the page shows what no browser should read:\n%s", &text)
	}
}

// TestBarsAreLogarithmic: ten times as much is as far from the middle as a tenth, and larger ratios
// end at the edge.
func TestBarsAreLogarithmic(t *testing.T) {
	for _, tt := range []struct {
		ratio    figure
		x, width float64
	}{{1, 160, 0}, {10, 160, 110}, {0.1, 50, 110}, {1000, 160, 110}} {
		if b := newBar(entry{ratios: []figure{tt.ratio}}); b.X != tt.x || b.Width != tt.width || b.HasGoal {
			t.Errorf("%v: %+v, want %v wide at %v", tt.ratio, b, tt.width, tt.x)
		}
	}
	if newBar(entry{ratios: []figure{absent}}) != nil || newBar(entry{ratios: []figure{0}}) != nil {
		t.Error("what was not measured has a bar")
	}
}
