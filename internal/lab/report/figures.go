package report

import (
	"fmt"
	"html/template"
	"slices"

	"github.com/fabricd/fabricd/internal/chart"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// named are the figures of a run, or of several runs of a scenario, with its name.
type named struct {
	name    string
	figures []check.Figure
}

// A figureTable is the data of a table of figures.
type figureTable struct {
	Several bool     // runs: each row names its own
	Columns []string // of Values
	Axis    template.HTML
	Rows    []figureRow
}

// A figureRow is one figure, or why it has no sample.
type figureRow struct {
	figureOf
	Values []figureValue
	Class  string // of the range
	Range  template.HTML
}

// A figureValue is a value, and what it is divided by the one that it is compared with.
type figureValue struct{ Value, Times string }

// newFigureTable returns the figures of all sets, those of the same kind below each other; of
// two that are compared, also by how much the second differs.
func newFigureTable(sets []named, compared bool) figureTable {
	all := byKind(sets)
	x := rangeScale(all)
	t := figureTable{Several: len(sets) > 1, Columns: []string{"samples", "min", "p50", "p99", "max"}, Axis: rangeAxis(x)}
	for i, f := range all {
		var first *check.Figure
		if compared && f.Set == sets[1].name && i > 0 && all[i-1].Name == f.Name && all[i-1].Of == f.Of {
			first = &all[i-1].Figure
		}
		t.Rows = append(t.Rows, f.row(first, x))
	}
	return t
}

// A figureOf is a figure with the name of its set.
type figureOf struct {
	check.Figure
	Set string
}

// byKind puts the figures of all sets in one list, in the order of the first.
func byKind(sets []named) (all []figureOf) {
	for _, set := range sets {
		for _, f := range set.figures {
			at := len(all)
			for i, g := range slices.Backward(all) {
				if g.Name == f.Name && g.Of == f.Of {
					at = i + 1
					break
				}
			}
			all = slices.Insert(all, at, figureOf{f, set.name})
		}
	}
	return all
}

// The measures of a range.
const (
	rangeWidth = 300
	rangeEdge  = 22
)

// rangeScale returns the scale of all times.
func rangeScale(all []figureOf) chart.Scale {
	least, most := float64(1e6), float64(1e6)
	for _, f := range all {
		if f.Count > 0 && f.Name != scenario.Throughput {
			least, most = min(least, float64(max(f.Min, 1e3))), max(most, float64(f.Max))
		}
	}
	return chart.Decades(least, most, rangeEdge, rangeWidth-rangeEdge)
}

// rangeAxis labels the scale of ranges.
func rangeAxis(x chart.Scale) template.HTML {
	var p picture
	p.f("<svg viewBox=\"0 0 %d 14\" aria-hidden=\"true\">", rangeWidth)
	for _, v := range x.Ticks() {
		p.f("<text class=\"t\" x=\"%.1f\" y=\"11\" text-anchor=\"middle\">%s</text>", x.At(v), dur(int64(v)))
	}
	p.f("</svg>")
	return p.html()
}

// row returns the row of a figure. First is the one to compare it with; nil: none.
func (f figureOf) row(first *check.Figure, x chart.Scale) figureRow {
	r := figureRow{figureOf: f, Class: "s1"}
	show := dur
	if f.Name == scenario.Throughput {
		show = amount
	} else {
		about := fmt.Sprintf("%s: %d samples, p50 %s, p99 %s, max %s", f.Name, f.Count, dur(f.P50), dur(f.P99), dur(f.Max))
		r.Range = template.HTML(chart.Range(x, float64(f.Min), float64(f.P50), float64(f.P99), float64(f.Max), about))
	}
	was := []int64{0, 0, 0, 0}
	if first != nil {
		r.Class, was = "s2", []int64{first.Min, first.P50, first.P99, first.Max}
	}
	for i, v := range []int64{f.Min, f.P50, f.P99, f.Max} {
		value := figureValue{Value: show(v)}
		if was[i] > 0 && v > 0 {
			value.Times = fmt.Sprintf("%.2g", float64(v)/float64(was[i]))
		}
		r.Values = append(r.Values, value)
	}
	return r
}
