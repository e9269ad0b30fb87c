package sim

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A chart is one panel of a plot: lines over the number of nodes.
type chart struct {
	title string
	lines []chartLine
}

// A chartLine is one line of a chart.
type chartLine struct {
	name   string
	color  string
	dashed bool
	values []float64
}

// Size of a plot's panels in pixels.
const (
	chartWidth, chartHeight = 420, 260
	chartLeft, chartBottom  = 58, 42
	chartTop, chartRight    = 46, 14
)

// ScalePlot draws what [Scale] has measured as an SVG picture: times of joining
// and of detection, and messages, over the number of nodes, in the order of
// nodes. It needs two points at least.
func ScalePlot(points []ScalePoint) []byte {
	xs := make([]float64, len(points))
	get := func(f func(p ScalePoint) float64) []float64 {
		out := make([]float64, len(points))
		for i, p := range points {
			xs[i], out[i] = float64(p.Nodes), f(p)
		}
		return out
	}
	charts := []chart{
		{"all nodes join at once, to full mesh [ms]", []chartLine{
			{"middle", "#1f77b4", false, get(func(p ScalePoint) float64 { return p.Join.P50.Seconds() * 1e3 })},
			{"worst", "#1f77b4", true, get(func(p ScalePoint) float64 { return p.Join.Max.Seconds() * 1e3 })},
		}},
		{"a killed node, to NODE_REMOVED everywhere [ms]", []chartLine{
			{"middle", "#d62728", false, get(func(p ScalePoint) float64 { return p.Crash.P50.Seconds() * 1e3 })},
			{"worst", "#d62728", true, get(func(p ScalePoint) float64 { return p.Crash.Max.Seconds() * 1e3 })},
			{"back, worst", "#2ca02c", true, get(func(p ScalePoint) float64 { return p.Return.Max.Seconds() * 1e3 })},
		}},
		{"a silent node, to NODE_REMOVED everywhere [s]", []chartLine{
			{"middle", "#9467bd", false, get(func(p ScalePoint) float64 { return p.Silence.P50.Seconds() })},
			{"worst", "#9467bd", true, get(func(p ScalePoint) float64 { return p.Silence.Max.Seconds() })},
		}},
		{"control messages, idle [per second] and in the storm", []chartLine{
			{"a node", "#ff7f0e", false, get(func(p ScalePoint) float64 { return p.Idle })},
			{"the host", "#8c564b", false, get(func(p ScalePoint) float64 { return p.IdleHost })},
			{"a node, whole storm", "#ff7f0e", true, get(func(p ScalePoint) float64 { return p.Storm })},
		}},
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n",
		2*chartWidth, 2*chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", 2*chartWidth, 2*chartHeight)
	for i, c := range charts {
		c.draw(&b, xs, float64(i%2*chartWidth), float64(i/2*chartHeight))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// draw draws the chart with its upper left corner at (left, top).
func (c chart) draw(b *bytes.Buffer, xs []float64, left, top float64) {
	high := 0.0
	for _, l := range c.lines {
		high = max(high, slices.Max(l.values))
	}
	step := tick(high)
	high = max(math.Ceil(high/step)*step, step)
	last := slices.Max(xs)
	x := func(v float64) float64 { return left + chartLeft + v/last*(chartWidth-chartLeft-chartRight) }
	y := func(v float64) float64 {
		return top + chartHeight - chartBottom - v/high*(chartHeight-chartBottom-chartTop)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="12" font-weight="bold">%s</text>`+"\n", left+chartLeft, top+16, c.title)
	for v := 0.0; v <= high+step/2; v += step {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", x(0), y(v), x(last), y(v))
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", x(0)-5, y(v)+4, number(v))
	}
	for _, v := range xs {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x(v), y(0)+15, number(v))
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">nodes</text>`+"\n", (x(0)+x(last))/2, y(0)+31)
	at := left + chartLeft
	for _, l := range c.lines {
		l.draw(b, xs, x, y)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="%s">%s %s</text>`+"\n", at, top+31, l.color, map[bool]string{false: "—", true: "- -"}[l.dashed], l.name)
		at += 30 + 7*float64(len(l.name))
	}
}

func (l chartLine) draw(b *bytes.Buffer, xs []float64, x, y func(float64) float64) {
	b.WriteString(`<polyline fill="none" stroke="` + l.color + `" stroke-width="1.6"`)
	if l.dashed {
		b.WriteString(` stroke-dasharray="5 3"`)
	}
	b.WriteString(` points="`)
	for i := range xs {
		fmt.Fprintf(b, "%.1f,%.1f ", x(xs[i]), y(l.values[i]))
	}
	b.WriteString("\"/>\n")
	for i := range xs {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", x(xs[i]), y(l.values[i]), l.color)
	}
}

// tick returns a round distance of which four to ten fit below v.
func tick(v float64) float64 {
	if v <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(v)))
	for v/step < 4 {
		step /= 2
	}
	return step
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
