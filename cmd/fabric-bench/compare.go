package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// errRegressed is the error of `compare` if a figure has become worse.
var errRegressed = errors.New("something has become worse")

// The verdicts of a comparison.
const (
	verdictSame    = "same"
	verdictBetter  = "better"
	verdictWorse   = "WORSE"
	verdictMissing = "missing"
)

// A Change is the change of ours in one row, or of its processor time.
type Change struct {
	What    string `json:"what"`
	Unit    string `json:"unit"`
	Old     figure `json:"old"`
	New     figure `json:"new"`
	Worse   figure `json:"worse_pct"`   // negative: better
	Allowed figure `json:"allowed_pct"` // the threshold, or the noise of both runs if that is more
	Verdict string `json:"verdict"`
}

// noiseFactor is how many times the noise of both runs a significant change must exceed.
const noiseFactor = 2

// changeOf compares a row's figures of two runs. A change counts if it exceeds the threshold, in
// percent, and twice the variation of both together.
func changeOf(what, unit string, old, now []figure, threshold figure) Change {
	c := Change{What: what, Unit: unit, Old: median(old), New: median(now), Verdict: verdictSame}
	c.Worse = 100 * (c.New/c.Old - 1)
	if moreIsBetter(unit) {
		c.Worse = 100 * (c.Old/c.New - 1)
	}
	c.Allowed = max(threshold, noiseFactor*figure(math.Hypot(float64(variation(old)), float64(variation(now)))))
	switch {
	case !c.Worse.measured():
		c.Verdict = verdictMissing
	case c.Worse > c.Allowed:
		c.Verdict = verdictWorse
	case c.Worse < -c.Allowed:
		c.Verdict = verdictBetter
	}
	return c
}

// compareReports compares all figures of ours in the old run.
func compareReports(old, now *Report, threshold figure) (changes []Change) {
	for _, o := range old.Rows {
		if !median(o.ours()).measured() {
			continue
		}
		n := Row{Sources: o.Sources}
		if i := slices.IndexFunc(now.Rows, func(n Row) bool { return n.Case == o.Case && n.What == o.What && n.Unit == o.Unit }); i >= 0 {
			n = now.Rows[i]
		}
		changes = append(changes, changeOf(o.What, o.Unit, o.ours(), n.ours(), threshold))
		if cpu := o.CPU[o.Sources[0]]; median(cpu).measured() {
			changes = append(changes, changeOf(o.What+": processor time", o.CPUUnit, cpu, n.CPU[n.Sources[0]], threshold))
		}
	}
	return changes
}

func (a *app) compareCommand() *cobra.Command {
	var threshold float64
	var asJSON, part bool
	cmd := &cobra.Command{
		Use: "compare OLD NEW", Short: "Compare two runs; exit code 3 if something is worse or gone", Args: cobra.ExactArgs(2),
		Long: `compare reads what "run --store" has written twice and compares ours in each row,
and its processor time. A change counts if it is beyond the threshold and beyond
twice the variation between the runs of both together. The exit code is 3 if a row has
become worse, and if one of the old run is not in the new one, unless --part says that
the new run is of some cases only.`,
		Example: `  fabric-bench run --store old.json
  fabric-bench compare old.json new.json
  fabric-bench compare old.json new.json --part --threshold 20`,
		RunE: func(_ *cobra.Command, args []string) error {
			if math.IsNaN(threshold) || threshold < 0 || threshold > 1000 {
				return usagef("--threshold %v: 0 to 1000 percent", threshold)
			}
			old, err := readReport(args[0])
			if err != nil {
				return err
			}
			now, err := readReport(args[1])
			if err != nil {
				return err
			}
			changes := compareReports(old, now, figure(threshold))
			if asJSON {
				err = writeJSON(a.stdout, changes)
			} else {
				err = writeChanges(a.stdout, old, now, changes)
			}
			return errors.Join(err, judgeChanges(changes, part))
		},
	}
	cmd.Flags().Float64Var(&threshold, "threshold", 10, "changes up to so many percent are none")
	cmd.Flags().BoolVar(&part, "part", false, "the new run is a part of the old one: rows that it lacks are no failure")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxReport bounds the file of a report, in bytes.
const maxReport = 16 << 20

// readReport reads a report that `run` has stored.
func readReport(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReport+1))
	if err == nil && len(text) > maxReport {
		err = fmt.Errorf("more than %d bytes", maxReport)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d, err := parseReport(text)
	if err != nil {
		return nil, fmt.Errorf("%s is no report of fabric-bench: %w", path, err)
	}
	return d, nil
}

// parseReport reads and checks the JSON of a report.
func parseReport(text []byte) (*Report, error) {
	var d Report
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	if d.Schema != reportSchema {
		return nil, fmt.Errorf("schema %q, want %q", d.Schema, reportSchema)
	}
	for _, r := range d.Rows {
		if len(r.Sources) == 0 {
			return nil, fmt.Errorf("the row %q has no sources", r.What)
		}
	}
	return &d, nil
}

// judgeChanges returns why a comparison fails; part permits missing rows.
func judgeChanges(changes []Change, part bool) error {
	counts := map[string]int{}
	for _, c := range changes {
		counts[c.Verdict]++
	}
	gone := counts[verdictMissing]
	switch {
	case len(changes) == gone:
		return errors.New("the two runs have no row in common")
	case counts[verdictWorse] > 0, gone > 0 && !part:
		return fmt.Errorf("%w: %d of %d rows are worse, %d are gone", errRegressed, counts[verdictWorse], len(changes), gone)
	}
	return nil
}

func writeChanges(w io.Writer, old, now *Report, changes []Change) error {
	t := newTable(w)
	if old.Machine.CPU != now.Machine.CPU || old.Machine.Cores != now.Machine.Cores {
		t.title("The machines differ: %v; %v", old.Machine, now.Machine)
	}
	t.row("verdict", "what", "old", "new", "worse by", "allowed")
	for _, c := range changes {
		t.row(c.Verdict, c.What, quantity([]figure{c.Old}, c.Unit), quantity([]figure{c.New}, c.Unit), percent(c.Worse), percent(c.Allowed))
	}
	t.flush()
	return t.err
}

func percent(f figure) string {
	if !f.measured() {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", float64(f))
}
