package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// expired returns a context that is over.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func row(what, unit string, ours, theirs []figure) Row {
	return Row{Case: "c", What: what, Unit: unit, Sources: []string{carryFabric, carryTLS}, Baseline: carryTLS, CPUUnit: cpuPerGB,
		Figures: map[string][]figure{carryFabric: ours, carryTLS: theirs}, CPU: map[string][]figure{}}
}

func TestTargetsAreJudged(t *testing.T) {
	less := row("latency", micros, []figure{20, 11, 12}, []figure{10, 10, 10})
	if x := median(less.ratio(less.Figures, carryTLS)); x != 1.2 {
		t.Errorf("the median ratio is %v", x)
	}
	for _, tt := range []struct {
		unit, baseline string
		target         *figure
		want           string
	}{
		{micros, carryTLS, to(1.15), notReached}, {micros, carryTLS, to(1.2), reached}, {megabytes, carryTLS, to(1.15), reached},
		{megabytes, carryTLS, to(1.3), notReached}, {micros, carryTLS, nil, ""}, {micros, "", to(12), reached}, {micros, "", to(11), notReached},
		{micros, carryStunnel, to(1), notMeasured},
	} {
		r := less
		r.Unit, r.Baseline, r.Target = tt.unit, tt.baseline, tt.target
		if got := r.verdict(); got != tt.want {
			t.Errorf("%s beside %q, target %v: %q, want %q", tt.unit, tt.baseline, tt.target, got, tt.want)
		}
	}
}

func TestReportsAreForPeople(t *testing.T) {
	r := row("messages", megabytes, []figure{1, 2, 3}, []figure{2, 2, 2})
	r.Target = to(0.95)
	gone := row("more messages", megabytes, nil, nil)
	gone.Why = "it is broken\nand more"
	d := &Report{Schema: reportSchema, Quick: true, Rows: []Row{r, gone}}
	d.note("a note")
	d.note("a note")
	var text bytes.Buffer
	if err := d.write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2.00 MB/s (1.00–3.00)", "≥ 0.95×", "more messages  it is broken\n", "1 of 1 targets reached; by --quick: ", "Note: a note"} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("%q is not once in\n%s", want, text.String())
		}
	}
}

// storeReport writes a report to a file.
func storeReport(t *testing.T, rows ...Row) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	var text bytes.Buffer
	if err := writeJSON(&text, &Report{Schema: reportSchema, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestComparisonsFindWhatIsWorse(t *testing.T) {
	old := storeReport(t, row("rate", megabytes, []figure{100, 101, 99}, nil), row("latency", micros, []figure{10, 10, 10}, nil))
	for _, tt := range []struct {
		name string
		now  []Row
		args []string
		code int
		says string
	}{
		{"the same", []Row{row("rate", megabytes, []figure{97}, nil), row("latency", micros, []figure{10.5}, nil)}, nil, exitOK, verdictSame},
		{"slower", []Row{row("rate", megabytes, []figure{80}, nil), row("latency", micros, []figure{10}, nil)}, nil, exitWorse, verdictWorse},
		{"allowed", []Row{row("rate", megabytes, []figure{80}, nil), row("latency", micros, []figure{10}, nil)}, []string{"--threshold", "30"}, exitOK, verdictSame},
		{"later", []Row{row("rate", megabytes, []figure{100}, nil), row("latency", micros, []figure{13}, nil)}, nil, exitWorse, verdictWorse},
		{"better", []Row{row("rate", megabytes, []figure{200}, nil), row("latency", micros, []figure{5}, nil)}, nil, exitOK, verdictBetter},
		{"gone", []Row{row("rate", megabytes, []figure{100}, nil)}, nil, exitWorse, verdictMissing},
		{"a part", []Row{row("rate", megabytes, []figure{100}, nil)}, []string{"--part"}, exitOK, verdictMissing},
		{"nothing", nil, []string{"--part"}, exitFail, verdictMissing},
	} {
		code, out, errs := runBench(t, append([]string{"compare", old, storeReport(t, tt.now...)}, tt.args...)...)
		if code != tt.code || !strings.Contains(out, tt.says) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", tt.name, code, tt.code, out, errs)
		}
	}
	if _, err := readReport(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"schema":"fabric-bench/2","rows":[{"what":"x","sources":["fabric"],"figures":{"fabric":[1,null]}}]}`))
	f.Add([]byte(`{"schema":"fabric-bench/1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseReport(text)
		if err != nil {
			return
		}
		compareReports(d, d, 10)
		if err := errors.Join(d.write(io.Discard), d.writePage(io.Discard), d.writeTargets(io.Discard, nil)); err != nil {
			t.Error(err)
		}
	})
}
