package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestCurvesAreByTheScenariosClock: an event 100 ms behind the zero is in the step that begins
// there, and rates are of a second.
func TestCurvesAreByTheScenariosClock(t *testing.T) {
	r := sample()
	if r.Result.Zero != 500*ms {
		t.Fatalf("the scenario begins at %d", r.Result.Zero)
	}
	c := newCurves(r.Records, r.Result.Zero, r.Result.End)
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	zero := int(-c.From / c.Step)
	if c.Step != 250*ms || c.From != -500*ms || c.Messages[zero] != 4000 || total(c.Messages) != 4000 || c.RMA[zero] != 2000 {
		t.Errorf("%+v", c)
	}
	if got := c.Latency[waitingRMA][zero]; got != (Spread{1, 4 * ms, 4 * ms}) {
		t.Errorf("RMA with SYNC took %+v", got)
	}
	if got := c.Latency[fenceWait][zero+1]; got != (Spread{3, 3 * ms, 9 * ms}) {
		t.Errorf("fence waits took %+v", got)
	}
	if killed := zero + 8; c.Errors["ECONNRESET"][killed] != 2 || total(c.Errors["ECONNRESET"]) != 2 {
		t.Errorf("errors %v", c.Errors)
	}
}

// TestAnOrderlyEndIsNoError: neither the reset that reports an end of the peer's close, nor
// a call that the application gives up.
func TestAnOrderlyEndIsNoError(t *testing.T) {
	l := &log{}
	app, end := history.App(0, 1), history.ConnEnd{Conn: 1, Side: history.Client}
	call := history.Call{ID: 1, Name: "recv", Conn: 1, Side: history.Client}
	l.put(10, app, &history.Return{Call: call, Status: "ECONNRESET"})
	l.put(11, app, &history.Closed{ConnEnd: end, How: history.HowEOF})
	l.put(12, app, &history.Return{Call: history.Call{ID: 2, Name: "accept"}, Status: "ECANCELED"})
	if c := newCurves(l.records, 0, 1000*ms); len(c.Errors) != 0 {
		t.Errorf("errors %v", c.Errors)
	}
	l.put(13, app, &history.Closed{ConnEnd: history.ConnEnd{Conn: 2, Side: history.Client}, How: "ECONNRESET"})
	if c := newCurves(l.records, 0, 1000*ms); c.Errors["ECONNRESET"][0] != 1 {
		t.Errorf("errors %v", c.Errors)
	}
}

func TestCurvesAreBounded(t *testing.T) {
	for _, seconds := range []int64{1, 13, 700, 90_000, 1e8} {
		end := seconds * 1000 * ms
		c := newCurves(nil, 300*ms, end)
		if n := len(c.Messages); n < 1 || n > maxSteps {
			t.Errorf("%d s: %d steps", seconds, n)
		}
	}
	if newCurves(nil, 0, 0) != nil {
		t.Error("a run of no length has curves")
	}
}

// TestFaultsThatOverlapAreOneShade, however they are ordered.
func TestFaultsThatOverlapAreOneShade(t *testing.T) {
	got := shades([]faultEntry{{What: "b", Begin: 20, End: 40}, {What: "a", Begin: 10, End: 30}, {What: "c", Begin: 50}}, 10, 100, "s1")
	if len(got) != 2 || got[0].From != 0 || got[0].To != 30 || got[0].Title != "a, b" || got[1].From != 40 || got[1].To != 90 {
		t.Errorf("%+v", got)
	}
}

// compared writes two runs and returns their page.
func compared(t *testing.T, a, b *Run) string {
	t.Helper()
	var saved []*Saved
	for _, r := range []*Run{a, b} {
		dir := t.TempDir()
		if err := WritePage(dir, r); err != nil {
			t.Fatal(err)
		}
		s, err := ReadSaved(dir)
		if err != nil {
			t.Fatal(err)
		}
		saved = append(saved, s)
	}
	var text bytes.Buffer
	if err := Compare(&text, saved[0], saved[1]); err != nil {
		t.Fatal(err)
	}
	checkPage(t, "compared", text.Bytes())
	return text.String()
}

// TestTwoRunsAreCompared: a run and one with another seed in which calls fail no more.
func TestTwoRunsAreCompared(t *testing.T) {
	a, b := sample(), sample()
	b.Result.Begin.Seed = 8
	for i, j := range b.Result.Invariants {
		if j.Name == "events" {
			b.Result.Invariants[i].Verdict, b.Result.Invariants[i].Count = "held", 0
		}
	}
	text := compared(t, a, b)
	for _, want := range []string{"sample: two runs", "seed 7 on local", "seed 8 on local", "What happened", "shade s1", "shade s2", "1×</small>", "✗ violated", "are the same in both runs"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if same := compared(t, a, sample()); strings.Contains(same, "seed 8") || !strings.Contains(same, "Verdicts<small>") {
		t.Error("runs of one seed are not distinguished by their directories")
	}
}

func TestWrongReportsAreRefused(t *testing.T) {
	good, err := JSON(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change func(map[string]any)
		want   string
	}{
		{func(d map[string]any) { d["version"] = 9 }, "version: 9: want 1"},
		{func(d map[string]any) { delete(d, "curves") }, "curves: missing"},
		{func(d map[string]any) { delete(d, "result") }, "curves: missing"},
		{func(d map[string]any) { d["curves"].(map[string]any)["step"] = 0 }, "curves: want"},
		{func(d map[string]any) { d["curves"].(map[string]any)["rma"] = []int{1} }, "curves: want"},
		{func(d map[string]any) { d["curves"].(map[string]any)["errors"] = map[string]any{"X": nil} }, "curves: want"},
	} {
		var d map[string]any
		if err := json.Unmarshal(good, &d); err != nil {
			t.Fatal(err)
		}
		tt.change(d)
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, JSONName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSaved(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}
