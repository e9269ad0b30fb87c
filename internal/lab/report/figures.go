package report

import (
	"fmt"
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

// figureTable shows the figures of all sets, those of the same kind below each other; of
// two that are compared, also by how much the second differs.
func (p *page) figureTable(sets []named, compared bool) {
	all := byKind(sets)
	if len(all) == 0 {
		return
	}
	x := rangeScale(all)
	p.f("<h2>Figures<small>in a range, the line goes from the least to the most, the block from the median to 99 of 100</small></h2>\n<div class=\"wide\"><table>\n<thead><tr>" +
		"<th scope=\"col\">figure</th><th scope=\"col\">of</th>")
	if len(sets) > 1 {
		p.f("<th scope=\"col\">run</th>")
	}
	for _, name := range []string{"samples", "min", "p50", "p99", "max"} {
		p.f("<th scope=\"col\" class=\"n\">%s</th>", name)
	}
	p.f("<th scope=\"col\" class=\"range\">%s</th></tr></thead>\n<tbody>\n", raw(rangeAxis(x)))
	for i, f := range all {
		var first *check.Figure
		if compared && f.set == sets[1].name && i > 0 && all[i-1].Name == f.Name && all[i-1].Of == f.Of {
			first = &all[i-1].Figure
		}
		class := "s1"
		if first != nil {
			class = "s2"
		}
		p.figureRow(f, first, x, class, len(sets) > 1)
	}
	p.f("</tbody>\n</table></div>\n")
}

// A figureOf is a figure with the name of its set.
type figureOf struct {
	check.Figure
	set string
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
func rangeAxis(x chart.Scale) string {
	var p page
	p.f("<svg viewBox=\"0 0 %d 14\" aria-hidden=\"true\">", rangeWidth)
	for _, v := range x.Ticks() {
		p.f("<text class=\"t\" x=\"%.1f\" y=\"11\" text-anchor=\"middle\">%s</text>", x.At(v), dur(int64(v)))
	}
	p.f("</svg>")
	return p.String()
}

// figureRow is one figure, or why it has no sample. First is the one to compare it with.
func (p *page) figureRow(f figureOf, first *check.Figure, x chart.Scale, class string, several bool) {
	p.f("<tr><td>%s</td><td>%s</td>", string(f.Name), f.Of)
	if several {
		p.f("<td class=\"set\">%s</td>", f.set)
	}
	if f.Count == 0 {
		why := f.Why
		if why == "" {
			why = "none was recorded"
		}
		p.f("<td class=\"n\">0</td><td colspan=\"5\" class=\"mute\">no sample: %s</td></tr>\n", why)
		return
	}
	show := dur
	if f.Name == scenario.Throughput {
		show = amount
	}
	p.f("<td class=\"n\">%d</td>", f.Count)
	was := []int64{0, 0, 0, 0}
	if first != nil {
		was = []int64{first.Min, first.P50, first.P99, first.Max}
	}
	for i, v := range []int64{f.Min, f.P50, f.P99, f.Max} {
		p.f("<td class=\"n\">%s", show(v))
		if was[i] > 0 && v > 0 {
			p.f("<small>%s×</small>", fmt.Sprintf("%.2g", float64(v)/float64(was[i])))
		}
		p.f("</td>")
	}
	p.f("<td class=\"%s\">", class)
	if f.Name != scenario.Throughput {
		about := fmt.Sprintf("%s: %d samples, p50 %s, p99 %s, max %s", f.Name, f.Count, dur(f.P50), dur(f.P99), dur(f.Max))
		p.f("%s", raw(chart.Range(x, float64(f.Min), float64(f.P50), float64(f.P99), float64(f.Max), about)))
	}
	p.f("</td></tr>\n")
}
