package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

func (a *app) pageCommand() *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use: "page REPORT", Short: "Write a stored report as a page to look at", Args: cobra.ExactArgs(1),
		Long: `page writes the report that "run --store" has stored as one file of HTML: how many
targets are reached, and for each row its verdict, ours, the baseline, and a bar of their
ratio with the target marked. It needs nothing else to be looked at or printed.`,
		Example: `  fabric-bench page report.json --out report.html`,
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := readReport(args[0])
			if err != nil || out == "" {
				if err == nil {
					err = d.writePage(a.stdout)
				}
				return err
			}
			f, err := os.Create(out)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := d.writePage(f); err != nil {
				return err
			}
			return f.Close()
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "write to this file (default: standard output)")
	return cmd
}

// A page is what page.html shows.
type page struct {
	Headline string
	Report   *Report
	Groups   []pageGroup
}

// A pageGroup is the rows that share a setup.
type pageGroup struct {
	Setup string
	Lines []pageLine
}

// A pageLine is a row, or its processor time.
type pageLine struct {
	Verdict, Class, What, Ours, Baseline, Source, Target string
	Bar                                                  *bar
}

// A bar is a ratio on a logarithmic scale, in units of page.html's drawing.
type bar struct {
	Class, Label, Anchor  string
	X, Width, Goal, TextX float64
	HasGoal               bool
}

func (d *Report) writePage(w io.Writer) error {
	p := page{Report: d}
	counts := map[string]int{}
	for _, r := range d.Rows {
		if n := len(p.Groups); n == 0 || p.Groups[n-1].Setup != r.Setup {
			p.Groups = append(p.Groups, pageGroup{Setup: r.Setup})
		}
		g := &p.Groups[len(p.Groups)-1]
		g.Lines = append(g.Lines, r.pageLine())
		counts[r.verdict()]++
		if r.CPUTarget != nil {
			g.Lines = append(g.Lines, r.cpuLine())
			counts[r.cpuVerdict()]++
		}
	}
	p.Headline = fmt.Sprintf("%d of %d targets reached", counts[reached], counts[reached]+counts[notReached]+counts[notMeasured])
	return pageTemplate.Execute(w, p)
}

// baseline returns the source that the row is shown beside: that of its target, or the
// first that was measured.
func (r *Row) baseline() string {
	if r.Baseline != "" {
		return r.Baseline
	}
	for _, s := range r.Sources[1:] {
		if median(r.Figures[s]).measured() {
			return s
		}
	}
	return ""
}

func (r *Row) pageLine() pageLine {
	l := pageLine{Verdict: r.verdict(), Class: class(r.verdict()), What: r.What, Target: r.bound(), Ours: spread(r.ours()) + " " + r.Unit}
	if r.Why != "" {
		l.Verdict, l.Class, l.Ours = notMeasured, class(notMeasured), clip(r.Why)
		return l
	}
	beside := r.baseline()
	if beside != "" {
		l.Source, l.Baseline = beside, spread(r.Figures[beside])
	}
	switch {
	case r.Baseline == "" && r.Target != nil:
		l.Bar = newBar(l.Class, median(r.ours()) / *r.Target, to(1))
	case beside != "":
		l.Bar = newBar(l.Class, median(r.ratio(r.Figures, beside)), r.Target)
	}
	return l
}

// cpuLine is the line of the row's processor time.
func (r *Row) cpuLine() pageLine {
	v := r.cpuVerdict()
	ratio := median(r.ratio(r.CPU, r.Baseline))
	return pageLine{Verdict: v, Class: class(v), What: r.What + ": processor time", Target: fmt.Sprintf("≤ %v×", *r.CPUTarget),
		Ours: spread(r.CPU[r.Sources[0]]) + " " + r.CPUUnit, Baseline: spread(r.CPU[r.Baseline]), Source: r.Baseline,
		Bar: newBar(class(v), ratio, r.CPUTarget)}
}

func class(verdict string) string {
	switch verdict {
	case reached:
		return "reached"
	case notReached:
		return "missed"
	}
	return "none"
}

// onScale returns where a ratio is on the scale, whose middle is 1×.
func onScale(ratio figure) float64 {
	return math.Round(160 + 130*min(max(math.Log10(float64(ratio)), -1), 1))
}

// newBar returns the bar of a ratio; nil where that was not measured.
func newBar(class string, ratio figure, target *figure) *bar {
	if !ratio.measured() || ratio <= 0 {
		return nil
	}
	x := onScale(ratio)
	b := &bar{Class: class, Label: fmt.Sprintf("%.2f×", float64(ratio)), X: min(x, 160), Width: math.Abs(x - 160)}
	b.TextX, b.Anchor = x+4, "start"
	if x < 160 {
		b.TextX, b.Anchor = x-4, "end"
	}
	if target != nil && *target > 0 {
		b.Goal, b.HasGoal = onScale(*target), true
	}
	return b
}
