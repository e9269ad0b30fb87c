package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// reportSchema changes when the meaning of a field does.
const reportSchema = "fabric-bench/2"

// A Report is what one run has measured.
type Report struct {
	Schema   string   `json:"schema"`
	Started  string   `json:"started"` // RFC 3339
	Command  []string `json:"command"`
	Machine  Machine  `json:"machine"`
	Revision string   `json:"revision"`
	Way      string   `json:"way"` // between the two machines
	Runs     int      `json:"runs"`
	During   string   `json:"during"` // of each measurement
	Rows     []Row    `json:"rows"`
	Notes    []string `json:"notes,omitempty"`
}

// A Row is what was measured of one thing, over ours and over each baseline: a
// figure for each run.
type Row struct {
	Case      string              `json:"case"`
	What      string              `json:"what"`
	Setup     string              `json:"setup"`
	Unit      string              `json:"unit"`
	Sources   []string            `json:"sources"` // ours first
	Figures   map[string][]figure `json:"figures"`
	CPU       map[string][]figure `json:"cpu"` // processor time of all processes that took part
	CPUUnit   string              `json:"cpu_unit,omitempty"`
	Baseline  string              `json:"baseline,omitempty"` // what targets compare with; empty: the target is a bound in unit
	Target    *figure             `json:"target,omitempty"`
	CPUTarget *figure             `json:"cpu_target,omitempty"` // the most of ours/baseline
	Why       string              `json:"why,omitempty"`        // it is not measured
}

func (d *Report) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(d.Notes, n) {
		d.Notes = append(d.Notes, n)
	}
}

// newRows returns the rows of a case, with nothing measured.
func newRows(c benchCase, s setup) (rows []Row) {
	for _, r := range c.rows {
		rows = append(rows, Row{Case: c.name, What: r.what, Setup: s.String(), Unit: r.unit, Sources: c.sources,
			Figures: map[string][]figure{}, CPU: map[string][]figure{}, CPUUnit: r.cpuUnit,
			Baseline: r.baseline, Target: r.target, CPUTarget: r.cpuTarget})
	}
	return rows
}

func (r *Row) add(source string, x reading) {
	r.Figures[source] = append(r.Figures[source], x.value)
	r.CPU[source] = append(r.CPU[source], x.cpu)
}

func (r *Row) ours() []figure { return r.Figures[r.Sources[0]] }

// ratio returns ours over another source, run by run.
func (r *Row) ratio(of map[string][]figure, source string) (all []figure) {
	ours, theirs := of[r.Sources[0]], of[source]
	for i := range min(len(ours), len(theirs)) {
		all = append(all, ours[i]/theirs[i])
	}
	return all
}

// The verdicts of a row's targets.
const (
	reached     = "reached"
	notReached  = "NOT reached"
	notMeasured = "not measured"
)

// verdict judges the median of the ratios to the baseline, or without one that of
// ours; empty: there is no target.
func (r *Row) verdict() string {
	v := median(r.ours())
	if r.Baseline != "" {
		v = median(r.ratio(r.Figures, r.Baseline))
	}
	return judge(v, r.Target, moreIsBetter(r.Unit) && r.Baseline != "")
}

func (r *Row) cpuVerdict() string {
	return judge(median(r.ratio(r.CPU, r.Baseline)), r.CPUTarget, false)
}

func judge(v figure, target *figure, atLeast bool) string {
	switch {
	case target == nil:
		return ""
	case !v.measured():
		return notMeasured
	case atLeast && v >= *target, !atLeast && v <= *target:
		return reached
	}
	return notReached
}

// bound writes the target of a row.
func (r *Row) bound() string {
	if r.Target == nil {
		return ""
	}
	switch {
	case r.Baseline == "":
		return fmt.Sprintf("≤ %v %s", *r.Target, r.Unit)
	case moreIsBetter(r.Unit):
		return fmt.Sprintf("≥ %v×", *r.Target)
	}
	return fmt.Sprintf("≤ %v×", *r.Target)
}

// write prints the report for people: a line for ours beside each baseline.
func (d *Report) write(w io.Writer) error {
	t := newTable(w)
	t.title("fabric-bench %s · %v", d.Revision, d.Machine)
	t.title("two machines: %s · %d runs of %s · figures are min/median/max of the runs, processor time is of all processes and a median", d.Way, d.Runs, d.During)
	setup := ""
	for _, r := range d.Rows {
		if r.Setup != setup {
			setup = r.Setup
			t.title("\n%s", setup)
			t.row("what", "unit", "ours", "beside", "its", "ours/its", "target", "verdict", "cpu", "its", "unit", "ours/its", "target")
		}
		if r.Why != "" {
			t.row(r.What, r.Unit, notMeasured+": "+clip(r.Why))
			continue
		}
		t.rowOf(&r)
	}
	t.flush()
	d.summary(t)
	for _, note := range d.Notes {
		t.title("Note: %s", note)
	}
	return t.err
}

// rowOf prints a row: beside the baseline of its target first.
func (t *table) rowOf(r *Row) {
	others := slices.DeleteFunc(slices.Clone(r.Sources[1:]), func(s string) bool { return !median(r.Figures[s]).measured() })
	if len(others) == 0 {
		cpu, cpuUnit := short(median(r.CPU[r.Sources[0]])), r.CPUUnit
		t.row(r.What, r.Unit, spread(r.ours()), "", "", "", r.bound(), r.verdict(), cpu, "", cpuUnit, "", "")
		return
	}
	slices.SortStableFunc(others, func(a, b string) int { // the one that counts first
		switch r.Baseline {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	for i, s := range others {
		what, ours, bound, verdict, cpuTarget := r.What, spread(r.ours()), "", "", ""
		if i > 0 {
			what, ours = "", ""
		}
		if s == r.Baseline || r.Baseline == "" && i == 0 {
			bound, verdict = r.bound(), r.verdict()
			if r.CPUTarget != nil {
				cpuTarget = fmt.Sprintf("≤ %v× %s", *r.CPUTarget, r.cpuVerdict())
			}
		}
		t.row(what, r.Unit, ours, s, spread(r.Figures[s]), spread(r.ratio(r.Figures, s)), bound, verdict,
			short(median(r.CPU[r.Sources[0]])), short(median(r.CPU[s])), r.CPUUnit, short(median(r.ratio(r.CPU, s))), cpuTarget)
	}
}

// summary counts the verdicts.
func (d *Report) summary(t *table) {
	counts := map[string]int{}
	for _, r := range d.Rows {
		counts[r.verdict()]++
		counts[r.cpuVerdict()]++
	}
	t.title("\ntargets: %d reached, %d not reached, %d not measured", counts[reached], counts[notReached], counts[notMeasured])
}

// clip keeps the first line of s, and what fits into a table's cell.
func clip(s string) string {
	const most = 120
	s, _, _ = strings.Cut(s, "\n")
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

// A table writes aligned columns; it keeps the first error.
type table struct {
	w   *tabwriter.Writer
	err error
}

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

func (t *table) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, format, args...); t.err == nil {
		t.err = err
	}
}

func (t *table) row(cells ...string) { t.printf("%s\n", strings.Join(cells, "\t")) }

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

func writeJSON(w io.Writer, d any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}
