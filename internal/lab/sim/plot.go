package sim

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/fabricd/fabricd/internal/chart"
)

// A scaleChart is curves over the number of nodes.
type scaleChart struct {
	title string
	lines []scaleLine
}

// A scaleLine is one curve of a chart.
type scaleLine struct {
	name   string
	class  string
	dashed bool
	values []float64
}

// ScalePlot draws the results of [Scale] as figures for a page: times of joining and of
// detection, and messages, over the number of nodes, in the order of nodes. It needs
// two points at least.
func ScalePlot(points []ScalePoint) []byte {
	xs := make([]float64, len(points))
	get := func(f func(p ScalePoint) float64) []float64 {
		out := make([]float64, len(points))
		for i, p := range points {
			xs[i], out[i] = float64(p.Nodes), f(p)
		}
		return out
	}
	charts := []scaleChart{
		{"all nodes join at once, to full mesh [ms]", []scaleLine{
			{"middle", "s1", false, get(func(p ScalePoint) float64 { return p.Join.P50.Seconds() * 1e3 })},
			{"worst", "s1", true, get(func(p ScalePoint) float64 { return p.Join.Max.Seconds() * 1e3 })},
		}},
		{"a killed node, to NODE_REMOVED everywhere [ms]", []scaleLine{
			{"middle", "s1", false, get(func(p ScalePoint) float64 { return p.Crash.P50.Seconds() * 1e3 })},
			{"worst", "s1", true, get(func(p ScalePoint) float64 { return p.Crash.Max.Seconds() * 1e3 })},
			{"back, worst", "s2", true, get(func(p ScalePoint) float64 { return p.Return.Max.Seconds() * 1e3 })},
		}},
		{"a silent node, to NODE_REMOVED everywhere [s]", []scaleLine{
			{"middle", "s1", false, get(func(p ScalePoint) float64 { return p.Silence.P50.Seconds() })},
			{"worst", "s1", true, get(func(p ScalePoint) float64 { return p.Silence.Max.Seconds() })},
		}},
		{"control messages, idle [per second] and in the storm", []scaleLine{
			{"a node", "s1", false, get(func(p ScalePoint) float64 { return p.Idle })},
			{"the host", "s2", false, get(func(p ScalePoint) float64 { return p.IdleHost })},
			{"a node, whole storm", "s1", true, get(func(p ScalePoint) float64 { return p.Storm })},
		}},
	}
	var b bytes.Buffer
	for _, c := range charts {
		c.draw(&b, xs)
	}
	return b.Bytes()
}

// draw draws the chart as a figure.
func (c scaleChart) draw(b *bytes.Buffer, xs []float64) {
	p := &chart.Panel{About: c.title + ", over the number of nodes", Height: 130, Label: number,
		X: chart.Scale{High: xs[len(xs)-1], From: chart.Left, To: chart.Width - chart.Right}}
	for _, v := range xs {
		p.Marks = append(p.Marks, chart.Mark{At: v, Label: number(v)})
	}
	fmt.Fprintf(b, "<figure><figcaption>%s<span class=\"about\">over the number of nodes</span>", c.title)
	for _, l := range c.lines {
		dash := map[bool]string{true: " dash"}[l.dashed]
		fmt.Fprintf(b, "<span class=\"%s\"><i class=\"k%s\"></i>%s</span>", l.class, dash, l.name)
		p.Series = append(p.Series, chart.Series{Class: l.class, Dash: l.dashed, X: xs, Y: l.values})
	}
	fmt.Fprintf(b, "</figcaption>\n%s</figure>\n", p.SVG())
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
