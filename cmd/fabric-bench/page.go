package main

import (
	_ "embed"
	"errors"
	"html/template"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/chart"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"style": style, "class": class, "bar": newBar, "split": splitQuantity}).Parse(pageHTML))

func (a *app) pageCommand() *cobra.Command {
	return a.ofReport(cobra.Command{
		Use: "page REPORT", Short: "Write a stored report as a page to look at",
		Long: `page writes the report that "run --store" has stored as one file of HTML: how many
targets are reached, and for each row its verdict, ours, the baselines, the processor time,
and a bar of the ratio with the target marked. It needs nothing else to be looked at or
printed.`,
		Example: `  fabric-bench page report.json --out report.html`,
	}, (*Report).writePage)
}

// ofReport completes a command that writes a stored report in another form.
func (a *app) ofReport(cmd cobra.Command, write func(*Report, io.Writer) error) *cobra.Command {
	out := ""
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		d, err := readReport(args[0])
		if err != nil {
			return err
		}
		if out == "" {
			return write(d, a.stdout)
		}
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		return errors.Join(write(d, f), f.Close())
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "write to this file (default: standard output)")
	return &cmd
}

// A page is the data of page.html.
type page struct {
	Headline, Legend string
	Report           *Report
	Groups           []group
}

func (d *Report) writePage(w io.Writer) error {
	return pageTemplate.Execute(w, page{d.headline(), legend, d, d.groups()})
}

func style() template.CSS { return chart.Style }

// class returns the style of a verdict.
func class(verdict string) string {
	switch verdict {
	case reached:
		return "good"
	case notReached:
		return "bad"
	}
	return "none"
}

// splitQuantity returns the median of a quantity, and the text in its brackets.
func splitQuantity(text string) []string {
	value, rest, _ := strings.Cut(text, " (")
	return []string{value, strings.TrimSuffix(rest, ")")}
}

// A bar is a ratio on a logarithmic scale, in units of page.html's drawing.
type bar struct {
	Label, Anchor    string
	X, Width, TextX  float64
	Least, Most      float64 // of the runs
	Goal             float64
	GoalX, GoalWidth float64 // the part of the scale that reaches the target
	HasGoal          bool
}

// The scale's middle is 1×, its ends 0.1× and 10×.
const (
	middle = 160
	decade = 110

	labelWidth = 40
)

// ratioScale is the scale of all bars.
var ratioScale = chart.Scale{Low: 0.1, High: 10, From: middle - decade, To: middle + decade, Log: true}

// onScale returns the position of a ratio on the scale.
func onScale(ratio figure) float64 { return math.Round(ratioScale.At(float64(ratio))) }

// newBar returns the bar of an entry; nil without a measurement.
func newBar(e entry) *bar {
	ratio := median(e.ratios)
	if !ratio.measured() || ratio <= 0 {
		return nil
	}
	x := onScale(ratio)
	v := measuredOf(e.ratios)
	b := &bar{Label: e.ratio(), X: min(x, middle), Width: math.Abs(x - middle), Least: onScale(slices.Min(v)), Most: onScale(slices.Max(v))}
	right, left := max(x, b.Most), min(x, b.Least)
	if e.goal != nil && *e.goal > 0 {
		b.mark(onScale(*e.goal), e.atLeast)
		if b.Goal > right && b.Goal < right+labelWidth {
			right = b.Goal
		}
		if b.Goal < left && b.Goal > left-labelWidth {
			left = b.Goal
		}
	}
	b.TextX, b.Anchor = right+4, "start"
	if x < middle {
		b.TextX, b.Anchor = left-4, "end"
	}
	return b
}

// mark draws the target, and the part of the scale that reaches it.
func (b *bar) mark(goal float64, atLeast bool) {
	b.Goal, b.HasGoal = goal, true
	b.GoalX, b.GoalWidth = middle-decade, goal-(middle-decade)
	if atLeast {
		b.GoalX, b.GoalWidth = goal, middle+decade-goal
	}
}
