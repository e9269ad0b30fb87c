package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// reasonsJSON has a sentence for each missed target, by its name.
//
//go:embed reasons.json
var reasonsJSON []byte

func (a *app) targetsCommand() *cobra.Command {
	return a.ofReport(cobra.Command{
		Use: "targets REPORT", Short: "Write the targets of a stored report as TARGETS.md",
		Long: `targets writes what became of each target in the report that "run --store" has stored,
as one table of Markdown. Why a target is not reached is in reasons.json beside the
program's source; what is missing there, and what is there without need, is printed as a
hint on standard error.`,
		Example: `  fabric-bench targets report.json --out cmd/fabric-bench/TARGETS.md`,
	}, func(d *Report, w io.Writer) error {
		var reasons map[string]string
		if err := json.Unmarshal(reasonsJSON, &reasons); err != nil {
			return fmt.Errorf("reasons.json: %w", err)
		}
		for _, hint := range d.hints(reasons) {
			fmt.Fprintln(a.stderr, "fabric-bench: hint:", hint)
		}
		return d.writeTargets(w, reasons)
	})
}

// targets returns the entries that have a target.
func (d *Report) targets() (all []entry) {
	for _, r := range d.Rows {
		for _, e := range r.entries() {
			if e.Target != "" {
				all = append(all, e)
			}
		}
	}
	return all
}

// hints returns the missing reasons and the superfluous ones. Cases that the run has left out are
// ignored.
func (d *Report) hints(reasons map[string]string) (all []string) {
	for _, e := range d.targets() {
		switch reason := reasons[e.What]; {
		case e.Verdict == notReached && reason == "":
			all = append(all, fmt.Sprintf("reasons.json has no reason why %q is not reached", e.What))
		case e.Verdict == reached && reason != "":
			all = append(all, fmt.Sprintf("reasons.json has a reason why %q is not reached, and it is", e.What))
		}
	}
	known := targetNames()
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if !slices.Contains(known, name) {
			all = append(all, fmt.Sprintf("reasons.json has %q, which is no target", name))
		}
	}
	return all
}

// targetNames returns the names of all targets.
func targetNames() (all []string) {
	d := &Report{}
	for _, c := range allCases() {
		d.Rows = append(d.Rows, newRows(c, c.setup)...)
	}
	for _, e := range d.targets() {
		all = append(all, e.What)
	}
	return all
}

// targetsHead begins TARGETS.md.
const targetsHead = `# %s

This page is generated: ` + "`make bench`" + ` measures, and
` + "`bin/fabric-bench targets REPORT.json --out cmd/fabric-bench/TARGETS.md`" + ` writes it of the report
that is kept as ` + "`testdata/last.json`" + ` and of ` + "`reasons.json`" + `. ` + "`fabric-bench list`" + ` has the cases.
Measured elsewhere: 200 nodes by ` + "`make chaos`" + `, the time to revoke and hostile members by
` + "`make attack`" + `, a million adversarial RMAs by ` + "`make criteria`" + `.

Run of %s, revision %s: %s. Two machines: %s; %d runs of %s; %s.

| verdict | what | ours | beside | ours/its | target | processor time | why not |
|---|---|---|---|---|---|---|---|
`

// writeTargets writes TARGETS.md.
func (d *Report) writeTargets(w io.Writer, reasons map[string]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, targetsHead, d.headline(), d.Started, d.Revision, d.Machine, d.Way, d.Runs, d.During, legend)
	for _, e := range d.targets() {
		c, why := comparison{}, ""
		switch {
		case e.Verdict == notReached:
			why = reasons[e.What]
		case len(e.Beside) == 0: // Ours has the reason why it was not measured
			e.Ours, why = "", e.Ours
		}
		if len(e.Beside) > 0 {
			c = e.Beside[0]
		}
		cells := []string{e.Verdict, e.What, e.Ours, strings.TrimSpace(c.Source + " " + c.Its), c.Ratio, e.Target, c.CPU, why}
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(cell, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	if left := d.casesLeftOut(); len(left) > 0 {
		fmt.Fprintf(&b, "\nNot in this run: %s.\n", strings.Join(left, ", "))
	}
	for _, note := range d.Notes {
		fmt.Fprintf(&b, "\nNote: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// casesLeftOut returns the names of the cases without a row in the report.
func (d *Report) casesLeftOut() (all []string) {
	for _, c := range allCases() {
		if !slices.ContainsFunc(d.Rows, func(r Row) bool { return r.Case == c.name }) {
			all = append(all, "`"+c.name+"`")
		}
	}
	return all
}
