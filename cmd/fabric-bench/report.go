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

// A Report is the result of one run.
type Report struct {
	Schema   string   `json:"schema"`
	Started  string   `json:"started"` // RFC 3339
	Command  []string `json:"command"`
	Machine  Machine  `json:"machine"`
	Revision string   `json:"revision"`
	Way      string   `json:"way"` // between the two machines
	Runs     int      `json:"runs"`
	Quick    bool     `json:"quick,omitempty"` // the figures show no performance
	During   string   `json:"during"`          // of each measurement
	Rows     []Row    `json:"rows"`
	Notes    []string `json:"notes,omitempty"`
}

// A Row is the result for one quantity, of ours and of each baseline: a figure for each run.
type Row struct {
	Case      string              `json:"case"`
	What      string              `json:"what"`
	Setup     string              `json:"setup"`
	Unit      string              `json:"unit"`
	Sources   []string            `json:"sources"` // ours first
	Figures   map[string][]figure `json:"figures"`
	CPU       map[string][]figure `json:"cpu"` // processor time of all processes that took part
	CPUUnit   string              `json:"cpu_unit,omitempty"`
	Baseline  string              `json:"baseline,omitempty"` // source that targets compare with; empty: Target is a bound in unit
	Target    *figure             `json:"target,omitempty"`
	CPUTarget *figure             `json:"cpu_target,omitempty"` // largest ours/baseline
	Why       string              `json:"why,omitempty"`        // the reason why it was not measured
}

func (d *Report) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(d.Notes, n) {
		d.Notes = append(d.Notes, n)
	}
}

// newRows returns the rows of a case, without measurements.
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

// verdict judges the median of the ratios to the baseline, or without a baseline the median of
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

// bound formats the target of a row.
func (r *Row) bound() string {
	switch {
	case r.Target == nil:
		return ""
	case r.Baseline == "":
		return "≤ " + exactly(*r.Target, r.Unit)
	case moreIsBetter(r.Unit):
		return fmt.Sprintf("≥ %v×", *r.Target)
	}
	return fmt.Sprintf("≤ %v×", *r.Target)
}

// legend explains the figures of a report.
const legend = "figures are the median of the runs, in brackets the least and the most; × is ours to its, run by run; processor time is of all processes that took part"

// write prints the report as text: the headline, and a table of each group.
func (d *Report) write(w io.Writer) error {
	t := newTable(w)
	t.title("%s", d.headline())
	t.title("fabric-bench %s · %v", d.Revision, d.Machine)
	t.title("two machines: %s · %d runs of %s; %s", d.Way, d.Runs, d.During, legend)
	for _, g := range d.groups() {
		t.title("\n%s · %s", g.Title, g.Setup)
		t.row("verdict", "what", "ours", "beside", "its", "ours/its", "target", "processor time")
		for _, e := range g.Entries {
			t.entry(e)
		}
		t.flush()
	}
	for i, note := range d.Notes {
		if i == 0 {
			t.title("")
		}
		t.title("Note: %s", note)
	}
	return t.err
}

// entry prints a line, and one for each further source.
func (t *table) entry(e entry) {
	if len(e.Beside) == 0 {
		t.row(e.Verdict, e.What, e.Ours)
		return
	}
	for i, c := range e.Beside {
		if i == 0 {
			t.row(e.Verdict, e.What, e.Ours, c.Source, c.Its, c.Ratio, e.Target, c.CPU)
			continue
		}
		t.row("", "", "", c.Source, c.Its, c.Ratio, "", c.CPU)
	}
}

// clip returns the first line of s, truncated to a table's cell.
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
