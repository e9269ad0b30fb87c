// Package plot draws figures over sizes as SVG: lines on two logarithmic axes.
// An SVG stands alone: no script, style sheet, font or picture of elsewhere.
package plot

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Point is one measured size.
type Point struct {
	X float64 // bytes, above 0
	Y float64 // above 0; others are left out
}

// A Line is what is measured of one thing.
type Line struct {
	Name   string
	Dashed bool // it is what others are compared with
	Points []Point
}

// A Chart is one picture.
type Chart struct {
	Title string
	YName string // with its unit
	Lines []Line
}

// The picture, in its own units.
const (
	width, height    = 760, 460
	left, right      = 76, 24
	top, bottom      = 52, 56
	legendRow        = 18
	legendColumns    = 3
	plotWidth        = width - left - right
	labelGap         = 8
	decadesWithSteps = 4 // more of them: no lines between
)

// colors are told apart also by those who see few of them: Okabe and Ito's.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#666666"}

// SVG draws the chart. Lines without a point that can be drawn are left out.
func (c Chart) SVG() string {
	d := &drawing{chart: c}
	for _, l := range c.Lines {
		l.Points = slices.DeleteFunc(slices.Clone(l.Points), func(p Point) bool { return !(p.X > 0 && p.Y > 0) || math.IsInf(p.X+p.Y, 0) })
		if len(l.Points) > 0 {
			d.lines = append(d.lines, l)
		}
	}
	d.scale()
	d.frame()
	d.grid()
	for i, l := range d.lines {
		d.line(i, l)
	}
	d.legend()
	d.f("</svg>\n")
	return d.b.String()
}

// A drawing is a chart that is being drawn.
type drawing struct {
	chart      Chart
	lines      []Line
	b          strings.Builder
	x0, x1     float64 // binary logarithms of the first and the last size
	y0, y1     float64 // decimal logarithms of the axis
	plotHeight float64
	total      float64 // height of the picture
}

func (d *drawing) f(format string, args ...any) { fmt.Fprintf(&d.b, format, args...) }

// scale chooses what the axes show: whole powers of two and of ten.
func (d *drawing) scale() {
	d.x0, d.x1, d.y0, d.y1 = 0, 1, 0, 1
	first := true
	for _, l := range d.lines {
		for _, p := range l.Points {
			x, y := math.Log2(p.X), math.Log10(p.Y)
			if first {
				d.x0, d.x1, d.y0, d.y1, first = x, x, y, y, false
			}
			d.x0, d.x1, d.y0, d.y1 = min(d.x0, x), max(d.x1, x), min(d.y0, y), max(d.y1, y)
		}
	}
	d.x0, d.x1 = math.Floor(d.x0), math.Ceil(d.x1)
	d.y0, d.y1 = tidy(d.y0, math.Floor), tidy(d.y1, math.Ceil)
	d.x1, d.y1 = max(d.x1, d.x0+1), max(d.y1, d.y0+1)
	rows := (len(d.lines) + legendColumns - 1) / legendColumns
	d.plotHeight = height - top - bottom
	d.total = height + float64(rows*legendRow)
}

// tidy returns the logarithm of 1, 2 or 5 times a power of ten that is next to
// log, below or above as round says.
func tidy(log float64, round func(float64) float64) float64 {
	best := round(log)
	for _, m := range []float64{2, 5} {
		step := math.Log10(m)
		if near := round(log-step) + step; math.Abs(near-log) < math.Abs(best-log) {
			best = near
		}
	}
	return best
}

func (d *drawing) x(v float64) float64 { return left + (math.Log2(v)-d.x0)/(d.x1-d.x0)*plotWidth }

func (d *drawing) y(v float64) float64 {
	return top + d.plotHeight - (math.Log10(v)-d.y0)/(d.y1-d.y0)*d.plotHeight
}

func (d *drawing) frame() {
	d.f(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-label="%s" font-family="system-ui, sans-serif" font-size="12">`+"\n",
		width, d.total, width, d.total, escape(d.chart.Title))
	d.f(`<rect width="100%%" height="100%%" fill="#ffffff"/>` + "\n")
	d.f(`<text x="%d" y="24" font-size="16" font-weight="600" fill="#222222">%s</text>`+"\n", left, escape(d.chart.Title))
	d.f(`<text x="%d" y="42" fill="#555555">%s</text>`+"\n", left, escape(d.chart.YName))
	d.f(`<text x="%d" y="%.0f" text-anchor="middle" fill="#555555">bytes</text>`+"\n", left+plotWidth/2, top+d.plotHeight+42)
}

// grid draws the axes: a line for every decade and, where there is room, at 2
// and 5 between, and one for every second power of two.
func (d *drawing) grid() {
	bottomY := top + d.plotHeight
	for e := math.Floor(d.y0); e <= d.y1; e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			log, inside := math.Log10(v), 1e-9
			if m > 1 && d.y1-d.y0 > decadesWithSteps || log < d.y0-inside || log > d.y1+inside {
				continue
			}
			color := "#d5d5d5"
			if m > 1 {
				color = "#eeeeee"
			}
			d.f(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`+"\n", left, d.y(v), left+plotWidth, d.y(v), color)
			d.f(`<text x="%d" y="%.1f" text-anchor="end" fill="#333333">%s</text>`+"\n", left-labelGap, d.y(v)+4, number(v))
		}
	}
	step := 1 + math.Floor((d.x1-d.x0)/14)
	for e := d.x0; e <= d.x1; e += step {
		v := math.Exp2(e)
		d.f(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#eeeeee"/>`+"\n", d.x(v), top, d.x(v), bottomY)
		d.f(`<text x="%.1f" y="%.1f" text-anchor="middle" fill="#333333">%s</text>`+"\n", d.x(v), bottomY+18, size(v))
	}
	d.f(`<rect x="%d" y="%d" width="%d" height="%.0f" fill="none" stroke="#999999"/>`+"\n", left, top, plotWidth, d.plotHeight)
}

func (d *drawing) line(i int, l Line) {
	color := colors[i%len(colors)]
	var points []string
	for _, p := range l.Points {
		points = append(points, fmt.Sprintf("%.1f,%.1f", d.x(p.X), d.y(p.Y)))
	}
	d.f(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round"%s/>`+"\n", strings.Join(points, " "), color, dash(l))
	for _, p := range l.Points {
		d.f(`<circle cx="%.1f" cy="%.1f" r="2.6" fill="%s"><title>%s, %s bytes: %s</title></circle>`+"\n",
			d.x(p.X), d.y(p.Y), color, escape(l.Name), size(p.X), number(p.Y))
	}
}

// legend names the lines below the picture.
func (d *drawing) legend() {
	for i, l := range d.lines {
		x := left + i%legendColumns*(plotWidth/legendColumns)
		y := height + 6 + i/legendColumns*legendRow
		d.f(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="3"%s/>`+"\n", x, y-4, x+26, y-4, colors[i%len(colors)], dash(l))
		d.f(`<text x="%d" y="%d" fill="#222222">%s</text>`+"\n", x+34, y, escape(l.Name))
	}
}

func dash(l Line) string {
	if l.Dashed {
		return ` stroke-dasharray="6 4"`
	}
	return ""
}

// size writes a number of bytes: 64, 1.5K, 4K, 1M.
func size(v float64) string {
	unit := ""
	for _, u := range []string{"K", "M", "G"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if v != math.Floor(v) {
		return fmt.Sprintf("%.4g%s", v, unit)
	}
	return fmt.Sprintf("%.0f%s", v, unit)
}

// number writes v as short as its axis allows.
func number(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

func escape(s string) string {
	var b strings.Builder
	// A builder never fails.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
