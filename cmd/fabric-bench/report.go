package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// report prints d in a format.
func (a *app) report(d *Document, format string) error {
	switch format {
	case "csv":
		return writeCSV(a.stdout, rowsOf(d))
	case "json":
		return writeJSON(a.stdout, d)
	case "ucx":
		return writeUCX(a.stdout, d)
	case "osu":
		return writeOSU(a.stdout, d)
	case "hdr":
		return writeHDR(a.stdout, d)
	}
	return writeTable(a.stdout, d)
}

// writeTable prints d for people.
func writeTable(w io.Writer, d *Document) error {
	t := newTable(w)
	t.title("%s · %s · %v", d.RunID, revision(), d.Machine)
	t.chaos(d.Chaos)
	t.latencies(d.Results)
	t.bandwidths(d.Results)
	t.ratios(d.Ratios)
	t.cliffs(d)
	t.clusters(d)
	t.idle(d.Idle)
	t.checks(d.Checks)
	t.flush()
	for _, note := range d.Notes {
		t.title("Note: %s", note)
	}
	return t.err
}

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
}

// A table writes aligned columns; it keeps the first error.
type table struct {
	w   *tabwriter.Writer
	err error
}

func (t *table) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, format, args...); t.err == nil {
		t.err = err
	}
}

func (t *table) row(cells ...string) { t.printf("%s\t\n", strings.Join(cells, "\t")) }

// title ends the table before it.
func (t *table) title(format string, args ...any) {
	t.flush()
	t.printf(format+"\n", args...)
	t.flush()
}

func (t *table) flush() {
	if err := t.w.Flush(); t.err == nil {
		t.err = err
	}
}

// short prints a figure with as many decimals as its size deserves.
func short(f figure) string {
	switch {
	case !f.measured():
		return "-"
	case f >= 1000:
		return fmt.Sprintf("%.0f", float64(f))
	case f >= 100:
		return fmt.Sprintf("%.1f", float64(f))
	case f > 0 && f < 0.01:
		return fmt.Sprintf("%.4f", float64(f))
	}
	return fmt.Sprintf("%.2f", float64(f))
}

// spread says how much the repetitions differ.
func spread(r Result) string {
	s := fmt.Sprintf("%s/%s/%s", short(r.Min), short(r.Median), short(r.Max))
	if !r.CV.measured() {
		return s
	}
	if r.Noise {
		return s + fmt.Sprintf(" NOISY %.0f%%", float64(r.CV))
	}
	return s + fmt.Sprintf(" ±%.0f%%", float64(r.CV))
}

func (t *table) latencies(results []Result) {
	begun := false
	for _, r := range results {
		if r.Figure != latencyFigure || clusterTest(r.Test) {
			continue
		}
		if !begun {
			begun = true
			t.title("\nLatency in µs; *_lat: half of the round trip")
			t.row("test", "provider", "dir", "bytes", "pairs", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max", "allocs/op", "syscalls/op", "switches/op", "wire/payload", "p50 of reps: min/median/max")
		}
		t.row(r.Test, r.Provider, r.Dir, fmt.Sprint(r.Size), fmt.Sprint(r.Pairs), short(r.LatP50), short(r.LatP90), short(r.LatP95), short(r.LatP99),
			short(r.LatP999), short(r.LatP9999), short(r.LatMax), short(r.Allocs), short(r.Syscalls), short(r.Switches), short(r.WireBytes), spread(r))
		if r.P99Ratio.measured() {
			t.row("", "", r.ratioOf(), "", "", "", "", "", short(r.P99Ratio))
		}
	}
}

// ratioOf says what P99Ratio is the ratio of.
func (r Row) ratioOf() string {
	return "p99 beside bulk / alone"
}

func (t *table) bandwidths(results []Result) {
	begun := false
	for _, r := range results {
		if r.Figure == latencyFigure || clusterTest(r.Test) {
			continue
		}
		if !begun {
			begun = true
			t.title("\nBandwidth and rates; MB is 10⁶ bytes, MiB 2²⁰; repetitions of MB/s, or of operations/s where the test is a rate")
			t.row("test", "provider", "bytes", "pairs", "conns", "MB/s", "MiB/s", "operations/s", "fairness", "bytes/conn", "bytes/window", "CPU s/GB", "allocs/op", "syscalls/op", "switches/op", "wire/payload", "reps: min/median/max")
		}
		t.row(r.Test, r.Provider, fmt.Sprint(r.Size), fmt.Sprint(r.Pairs), fmt.Sprint(r.Conns), short(r.BWAvg), short(r.BWMiB), short(r.Rate),
			short(r.Fairness), short(r.ConnBytes), short(r.WindowBytes), short(r.CPUPerGB), short(r.Allocs), short(r.Syscalls), short(r.Switches), short(r.WireBytes), spread(r))
	}
}

func (t *table) ratios(ratios []Ratio) {
	if len(ratios) == 0 {
		return
	}
	t.title("\nOurs / anchor: median of the repetitions, and their range")
	t.row("test", "anchor", "bytes", "of", "ours", "raw", "ours/raw", "range", "target")
	for _, q := range ratios {
		t.row(q.Test, q.Anchor, fmt.Sprint(q.Size), strings.TrimSuffix(q.Figure, "_dec"), short(q.Ours), short(q.Raw),
			fmt.Sprintf("%.2f", float64(q.Ratio)), fmt.Sprintf("%.2f-%.2f", float64(q.Min), float64(q.Max)), q.verdict())
	}
}

// verdict says whether the ratio's target is reached.
func (q Ratio) verdict() string {
	switch {
	case q.AtMost != nil:
		return fmt.Sprintf("≤ %v %s", *q.AtMost, reached(*q.Reached))
	case q.AtLeast != nil:
		return fmt.Sprintf("≥ %v %s", *q.AtLeast, reached(*q.Reached))
	}
	return ""
}

func reached(ok bool) string {
	if ok {
		return "reached"
	}
	return "NOT reached"
}

// cliffs says where time grows too much between neighbouring sizes.
func (t *table) cliffs(d *Document) {
	if d.CliffPairs == 0 {
		return
	}
	t.title("\nCliffs: of %d pairs of neighbouring sizes, in %d time more than doubles beyond the ratio of the sizes, and in %d again when both were measured again",
		d.CliffPairs, len(d.Cliffs), staying(d.Cliffs))
	for _, c := range d.Cliffs {
		t.title("  %v", c)
	}
}

func (t *table) checks(checks []Check) {
	if len(checks) == 0 {
		return
	}
	t.title("\nTargets")
	for _, c := range checks {
		t.row(c.What, short(c.Value)+" "+c.Unit, fmt.Sprintf("≤ %v %s", c.AtMost, c.Unit), reached(c.Reached))
	}
}

// rowsOf returns the rows of all results.
func rowsOf(d *Document) []Row {
	rows := make([]Row, len(d.Results))
	for i, r := range d.Results {
		rows[i] = r.Row
	}
	return rows
}
