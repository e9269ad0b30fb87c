package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/page"
	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/plot"
)

// A picture is a chart of the report: one test, a line for each provider.
type picture struct{ test, title, unit string }

var pictures = []picture{
	{"msg_lat", "Messages: latency", "µs, half of the round trip"},
	{"msg_bw", "Messages: bandwidth", "MB/s, one way"},
	{"rma_write_lat", "Remote writes: latency", "µs, half of the time until the bytes are known to be there"},
	{"rma_write_bw", "Remote writes: bandwidth", "MB/s"},
	{"rma_read_lat", "Remote reads: latency", "µs, half of the time until the bytes are here"},
	{"rma_read_bw", "Remote reads: bandwidth", "MB/s"},
}

// suiteReport returns the report of a run.
func suiteReport(d *Document) page.Report {
	r := page.Report{Title: "fabric-bench " + d.RunID, Facts: []page.Fact{
		{Name: "begun", Value: d.Started},
		{Name: "machine", Value: d.Machine.String()},
		{Name: "program", Value: revision()},
		{Name: "command", Value: strings.Join(d.Command, " ")},
	}}
	r.Sections = append(r.Sections, targetSection(d), chartSection(d), cliffSection(d))
	for _, group := range groups() {
		if s, ok := groupSection(d, group); ok {
			r.Sections = append(r.Sections, s)
		}
	}
	r.Sections = append(append(r.Sections, clusterSections(d)...), ratioSection(d))
	if len(d.Notes) > 0 {
		r.Sections = append(r.Sections, page.Section{Heading: "notes", List: d.Notes})
	}
	return r
}

func targetSection(d *Document) page.Section {
	t := page.Table{Words: 1, Head: []string{"what", "ours", "anchor", "anchor's", "of", "ours/anchor", "target", "verdict"}}
	for _, q := range d.Targets {
		mood := map[string]page.Mood{targetReached: page.Good, targetMissed: page.Bad}[q.Verdict]
		if mood == page.Plain {
			mood = page.Dim
		}
		cells := page.Cells(q.What, q.Ours.String(), q.Anchor, q.Raw.String(), q.Unit, q.Ratio.String(), q.bound(), clip(q.distance()))
		cells[len(cells)-1].Mood = mood
		t.Rows = append(t.Rows, cells)
	}
	return page.Section{Heading: "targets", Text: targetsHeading + ".", Tables: tablesOf(t)}
}

// tablesOf returns t unless it is empty.
func tablesOf(t page.Table) []page.Table {
	if len(t.Rows) == 0 {
		return nil
	}
	return []page.Table{t}
}

func chartSection(d *Document) page.Section {
	s := page.Section{Heading: "sizes", Text: "Medians of the repetitions. Dashed: anchors, measured in turns with ours."}
	for _, p := range pictures {
		c := plot.Chart{Title: p.title, YName: p.unit}
		for _, g := range sweeps(d.Results) {
			if g[0].Test != p.test || len(g) < 2 {
				continue
			}
			l := plot.Line{Name: g[0].Provider, Dashed: isAnchorName(g[0].Provider)}
			// An anchor may have been measured beside several of ours: the first.
			g = slices.CompactFunc(g, func(a, b Result) bool { return a.Size == b.Size })
			for _, r := range g {
				l.Points = append(l.Points, plot.Point{X: float64(r.Size), Y: float64(r.Median)})
			}
			c.Lines = append(c.Lines, l)
		}
		if len(c.Lines) > 0 {
			s.Charts = append(s.Charts, page.Chart{File: p.test + ".svg", SVG: c.SVG()})
		}
	}
	return s
}

func cliffSection(d *Document) page.Section {
	s := page.Section{Heading: "cliffs", Text: fmt.Sprintf(
		"Of %d pairs of neighbouring sizes, in %d time more than doubles beyond the ratio of the sizes, and in %d again when both were measured again.",
		d.CliffPairs, len(d.Cliffs), staying(d.Cliffs))}
	for _, c := range d.Cliffs {
		s.List = append(s.List, c.String())
	}
	return s
}

// groups returns the groups of tests in their order.
func groups() (names []string) {
	for _, t := range tests() {
		if !slices.Contains(names, t.group) {
			names = append(names, t.group)
		}
	}
	return names
}

// groupSection returns the tables of a group; sizes that only the sweep has are
// in the pictures.
func groupSection(d *Document, group string) (page.Section, bool) {
	latency := page.Table{Caption: "Latency in µs; *_lat: half of the round trip", Words: 3,
		Head: []string{"test", "provider", "dir", "bytes", "pairs", "p50", "p90", "p99", "p99.9", "max", "p99 ratio", "CPU s/GB", "allocs/op", "syscalls/op", "switches/op", "wire/payload", "p50 of reps"}}
	throughput := page.Table{Caption: "Bandwidth and rates; MB is 10⁶ bytes, MiB 2²⁰", Words: 2,
		Head: []string{"test", "provider", "bytes", "pairs", "conns", "MB/s", "MiB/s", "operations/s", "fairness", "bytes/conn", "bytes/window", "CPU s/GB", "allocs/op", "syscalls/op", "switches/op", "wire/payload", "reps"}}
	for _, r := range d.Results {
		if !inGroup(r, group) || slices.Contains(sweepTests, r.Test) && !slices.Contains(tableSizes, r.Size) {
			continue
		}
		size, pairs := sizeName(r.Size), fmt.Sprint(r.Pairs)
		if r.Figure == latencyFigure {
			latency.Rows = append(latency.Rows, page.Cells(r.Test, r.Provider, r.Dir, size, pairs, short(r.LatP50), short(r.LatP90), short(r.LatP99),
				short(r.LatP999), short(r.LatMax), short(r.P99Ratio), short(r.CPUPerGB), short(r.Allocs), short(r.Syscalls), short(r.Switches), short(r.WireBytes), spread(r)))
			continue
		}
		throughput.Rows = append(throughput.Rows, page.Cells(r.Test, r.Provider, size, pairs, fmt.Sprint(r.Conns), short(r.BWAvg), short(r.BWMiB),
			short(r.Rate), short(r.Fairness), short(r.ConnBytes), short(r.WindowBytes), short(r.CPUPerGB), short(r.Allocs), short(r.Syscalls), short(r.Switches), short(r.WireBytes), spread(r)))
	}
	s := page.Section{Heading: group, Tables: append(tablesOf(latency), tablesOf(throughput)...)}
	return s, len(s.Tables) > 0
}

// tableSizes are the sizes of sweeps that the report's tables have.
var tableSizes = []int64{8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20}

func inGroup(r Result, group string) bool {
	return slices.ContainsFunc(tests(), func(t *test) bool { return t.name == r.Test && t.group == group })
}

func ratioSection(d *Document) page.Section {
	t := page.Table{Words: 2, Head: []string{"test", "anchor", "bytes", "of", "ours", "anchor's", "ours/anchor", "range", "target"}}
	for _, q := range d.Ratios {
		if slices.Contains(sweepTests, q.Test) && !slices.Contains(tableSizes, q.Size) {
			continue
		}
		t.Rows = append(t.Rows, page.Cells(q.Test, q.Anchor, sizeName(q.Size), strings.TrimSuffix(q.Figure, "_dec"), short(q.Ours), short(q.Raw),
			short(q.Ratio), short(q.Min)+"-"+short(q.Max), q.verdict()))
	}
	return page.Section{Heading: "ours and anchors", Text: "Medians of the repetitions' ratios, and their range.", Tables: tablesOf(t)}
}

// rowsOf returns the rows of all results.
func rowsOf(d *Document) []Row {
	rows := make([]Row, len(d.Results))
	for i, r := range d.Results {
		rows[i] = r.Row
	}
	return rows
}
