package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// resultOf returns a result with a figure, its variation in percent, and wrong
// operations.
func resultOf(name string, value, cv figure, wrong int64) Result {
	r := newRow()
	r.Test, r.Provider, r.Size, r.CV, r.Errors = "msg", "quic", 64, cv, wrong
	switch name {
	case latencyFigure:
		r.LatP50 = value
	case bandwidthFigure:
		r.BWAvg = value
	}
	return Result{Row: r, Figure: name, Min: value, Median: value, Max: value}
}

func TestChangesAreJudgedByThresholdAndNoise(t *testing.T) {
	for _, tt := range []struct {
		name             string
		figure           string
		old, now         figure
		oldNoise, noise  figure
		wrong            int64
		want             string
		threshold, allow figure
	}{
		{"a little slower", latencyFigure, 10, 10.9, 0, 0, 0, verdictSame, 10, 10},
		{"slower", latencyFigure, 10, 11.2, 0, 0, 0, verdictWorse, 10, 10},
		{"slower, but nobody could say", latencyFigure, 10, 12, 8, 8, 0, verdictSame, 10, 22.6},
		{"slower beyond all noise", latencyFigure, 10, 14, 8, 8, 0, verdictWorse, 10, 22.6},
		{"slower, and the threshold is wide", latencyFigure, 10, 14, 0, 0, 0, verdictSame, 50, 50},
		{"faster", latencyFigure, 10, 8, 1, 1, 0, verdictBetter, 10, 10},
		{"less bandwidth", bandwidthFigure, 100, 80, 0, 0, 0, verdictWorse, 10, 10},
		{"more bandwidth", bandwidthFigure, 100, 130, 0, 0, 0, verdictBetter, 10, 10},
		{"fewer operations", rateFigure, 100, 95, 0, 0, 0, verdictSame, 10, 10},
		{"faster, with wrong bytes", latencyFigure, 10, 5, 0, 0, 1, verdictWrong, 10, 10},
		{"as many false removals", falseFigure, 0, 0, 0, 0, 0, verdictSame, 10, 10},
		{"some where there were none", falseFigure, 0, 2, 0, 0, 0, verdictWorse, 10, 10},
		{"fewer false removals", falseFigure, 8, 2, 0, 0, 0, verdictBetter, 10, 10},
		{"noise that nobody measured", latencyFigure, 10, 12, absent, absent, 0, verdictWorse, 10, 10},
		{"nothing measured", latencyFigure, 10, absent, 0, 0, 0, verdictMissing, 10, 10},
		{"nothing at all", bandwidthFigure, 0, 0, 0, 0, 0, verdictMissing, 10, 10},
	} {
		got := judgeChange(resultOf(tt.figure, tt.old, tt.oldNoise, 0), resultOf(tt.figure, tt.now, tt.noise, tt.wrong), tt.threshold)
		if got.Verdict != tt.want || short(got.Allowed) != short(figure(tt.allow)) && tt.allow != 22.6 || tt.allow == 22.6 && got.Allowed < 22 {
			t.Errorf("%s: %s, allowed %v; want %s and %v", tt.name, got.Verdict, got.Allowed, tt.want, tt.allow)
		}
	}
}

// What stands for a row is known from the row alone, also of a test that moves
// bytes and is a rate.
func TestRowsSayWhatStandsForThem(t *testing.T) {
	row := func(test string, set func(*Row)) Row {
		r := newRow()
		r.Test = test
		set(&r)
		return r
	}
	for _, tt := range []struct {
		row    Row
		figure string
		median figure
	}{
		{row("msg_bw", func(r *Row) { r.BWAvg, r.BWPeak, r.Rate = 5, 6, 7 }), bandwidthFigure, 5},
		{row("atomic_add", func(r *Row) { r.BWAvg, r.Rate = 5, 7 }), rateFigure, 7},
		{row("msg_lat", func(r *Row) { r.LatP50, r.Rate = 3, 7 }), latencyFigure, 3},
		{row(falseTest, func(r *Row) { r.FalseRate = 2 }), falseFigure, 2},
	} {
		if got := fromRow(tt.row); got.Figure != tt.figure || got.Median != tt.median {
			t.Errorf("%s: %s of %v, want %s of %v", tt.row.Test, got.Figure, got.Median, tt.figure, tt.median)
		}
	}
}

// store writes results to a file, as JSON or CSV.
func store(t *testing.T, name string, results ...Result) string {
	t.Helper()
	var text bytes.Buffer
	d := &Document{Schema: schemaVersion, Results: results, Command: []string{"fabric-bench", "deployed"}}
	err := writeJSON(&text, d)
	if strings.HasSuffix(name, ".csv") {
		text.Reset()
		err = writeCSV(&text, rowsOf(d))
	}
	path := filepath.Join(t.TempDir(), name)
	if err := first(err, os.WriteFile(path, text.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCompareEndsWith3IfSomethingIsWorse(t *testing.T) {
	old := store(t, "old.json", resultOf(latencyFigure, 10, 1, 0))
	for _, tt := range []struct {
		now  string
		code int
		says string
	}{
		{store(t, "same.json", resultOf(latencyFigure, 10.2, 1, 0)), exitOK, verdictSame},
		{store(t, "better.csv", resultOf(latencyFigure, 5, 1, 0)), exitOK, verdictBetter},
		{store(t, "worse.json", resultOf(latencyFigure, 20, 1, 0)), exitWorse, "1 of 1 rows"},
		{store(t, "worse.csv", resultOf(latencyFigure, 20, 1, 0)), exitWorse, "1 of 1 rows"},
		{store(t, "wrong.json", resultOf(latencyFigure, 10, 1, 3)), exitWorse, verdictWrong},
		{store(t, "other.json", resultOf(bandwidthFigure, 10, 1, 0)), exitFail, "no row in common"},
		{filepath.Join(t.TempDir(), "none.json"), exitFail, "no such file"},
	} {
		code, out, errs := runBench(t, "compare", old, tt.now)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: exit code %d, want %d; %s%s", filepath.Base(tt.now), code, tt.code, out, errs)
		}
	}
	if code, _, errs := runBench(t, "compare", old); code != exitFail || !strings.Contains(errs, "name a second file") {
		t.Errorf("a suite again: exit code %d, %s", code, errs)
	}
	code, out, _ := runBench(t, "compare", old, old, "--format", "json")
	if code != exitOK || !strings.Contains(out, `"verdict": "same"`) {
		t.Errorf("JSON: exit code %d, %s", code, out)
	}
}

// A row that the new run has not is a regression, and named, unless only a part was
// measured again.
func TestVanishedRowsAreARegression(t *testing.T) {
	kept, gone := resultOf(latencyFigure, 10, 1, 0), resultOf(latencyFigure, 10, 1, 0)
	gone.Test, gone.Dir, gone.Size = "rma_write_lat", "write", 4096
	empty := gone
	empty.Median = absent
	old := store(t, "old.json", kept, gone)
	worse := resultOf(latencyFigure, 20, 1, 0)
	const named = "rma_write_lat over quic, write, 4K bytes, 1 pairs, " + latencyFigure
	for _, tt := range []struct {
		name  string
		now   string
		flags []string
		code  int
		says  string
		lists bool
	}{
		{"one is left", store(t, "part.json", kept), nil, exitWorse, "1 have vanished", true},
		{"of CSV", store(t, "part.csv", kept), nil, exitWorse, "1 have vanished", true},
		{"in JSON", store(t, "part.json", kept), []string{"--format", "json"}, exitWorse, "1 have vanished", true},
		{"there, and nothing measured", store(t, "empty.json", kept, empty), nil, exitWorse, "1 have vanished", true},
		{"worse beside it", store(t, "both.json", worse), nil, exitWorse, "1 of 2 rows, and 1 have vanished", true},
		{"a part", store(t, "part.json", kept), []string{"--part"}, exitOK, verdictMissing, false},
		{"a part that is worse", store(t, "worse.json", worse), []string{"--part"}, exitWorse, "1 of 2 rows", false},
		{"all are there", store(t, "all.json", gone, kept), nil, exitOK, verdictSame, false},
	} {
		code, out, errs := runBench(t, append([]string{"compare", old, tt.now}, tt.flags...)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) || strings.Contains(errs, named) != tt.lists {
			t.Errorf("%s: exit code %d, want %d and %q; %s%s", tt.name, code, tt.code, tt.says, out, errs)
		}
	}
	nothing := resultOf(bandwidthFigure, 0, 0, 0)
	if c := judgeChange(nothing, nothing, 10); c.vanished() {
		t.Errorf("what never was has vanished: %+v", c)
	}
	if c := judgeChange(resultOf(bandwidthFigure, 100, 0, 0), nothing, 10); !c.vanished() {
		t.Errorf("a bandwidth that is 0 now has not vanished: %+v", c)
	}
}

func TestARunIsMeasuredAgain(t *testing.T) {
	temporaries(t)
	path := filepath.Join(t.TempDir(), "run.json")
	args := []string{"run", "msg_lat", "--provider=mem", "--size", "8", "--iters", "50", "--reps", "1", "--quiet", "--format", "json"}
	code, out, errs := runBench(t, args...)
	if err := os.WriteFile(path, []byte(out), 0o600); code != exitOK || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, errs)
	}
	code, out, errs = runBench(t, "compare", path, "--threshold", "1000")
	if code != exitOK || strings.Count(out, "msg_lat") != 1 {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

func TestOnlyMeasurementsAreRepeated(t *testing.T) {
	got, err := repeatable([]string{"fabric-bench", "run", "msg_lat", "--format=csv", "--fail-on-cliff", "--cpuprofile", "/tmp/x", "--size", "8"})
	if want := []string{"run", "msg_lat", "--size", "8", "--format", "json"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, command := range [][]string{nil, {"fabric-bench"}, {"fabric-bench", "deployed"}, {"fabric-bench", "serve"}} {
		if got, err := repeatable(command); err == nil {
			t.Errorf("%q: %q", command, got)
		}
	}
}
