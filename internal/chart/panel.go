package chart

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The measures of a panel, in units of its own: panels below each other have the same.
const (
	Width  = 1160
	Left   = 76
	Right  = 12
	top    = 8
	bottom = 18 // for the labels of the lower axis
)

// A Panel is a picture of curves over one lower axis.
type Panel struct {
	About  string  // for people that do not see it
	Height float64 // without the labels of the axis
	X      Scale   // of the lower axis: from Left to Width-Right
	Marks  []Mark  // of the lower axis
	Series []Series
	Shades []Shade
	Log    bool                 // the upright axis
	Stack  bool                 // columns upon each other in place of curves
	Label  func(float64) string // of a value
	// Hits are texts that are shown over a part of the lower axis.
	Hits []Shade
}

// A Mark is a labelled place of an axis.
type Mark struct {
	At    float64
	Label string
}

// A Series is one curve; NaN is a gap. X and Y are of the same length.
type Series struct {
	Class string // "s1" to "s5"
	Dash  bool
	X, Y  []float64
}

// A Shade is a part of the lower axis.
type Shade struct {
	From, To float64
	Class    string // empty, or that of a series
	Title    string
}

// SVG draws the panel. It is empty if no series has a value.
func (p *Panel) SVG() string {
	y, ok := p.upright()
	if !ok {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"%s\">\n", Width, p.Height+bottom, html.EscapeString(p.About))
	for _, s := range p.Shades {
		p.block(&b, "shade "+s.Class, s)
	}
	for _, m := range p.Marks {
		x := p.X.At(m.At)
		fmt.Fprintf(&b, "<line class=\"g\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/><text class=\"t\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
			x, top, x, p.Height, x, p.Height+14, html.EscapeString(m.Label))
	}
	for _, v := range y.Ticks() {
		fmt.Fprintf(&b, "<line class=\"g\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text class=\"t\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			Left, y.At(v), Width-Right, y.At(v), Left-6, y.At(v)+4, html.EscapeString(p.Label(v)))
	}
	if p.Stack {
		p.columns(&b, y)
	} else {
		for _, s := range p.Series {
			s.curve(&b, p.X, y)
		}
	}
	for _, s := range p.Hits {
		p.block(&b, "hit", s)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// upright returns the scale of the values.
func (p *Panel) upright() (Scale, bool) {
	var all []float64
	for _, s := range p.Series {
		for i, v := range s.Y {
			if math.IsNaN(v) || p.Log && v <= 0 {
				continue
			}
			if p.Stack {
				v = p.sum(i)
			}
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return Scale{}, false
	}
	if p.Log {
		return Decades(slices.Min(all), slices.Max(all), p.Height, top), true
	}
	return Zero(slices.Max(all), p.Height, top), true
}

// sum returns the height of a stacked column.
func (p *Panel) sum(i int) (sum float64) {
	for _, s := range p.Series {
		sum += s.Y[i]
	}
	return sum
}

// block draws a part of the lower axis from top to bottom.
func (p *Panel) block(b *strings.Builder, class string, s Shade) {
	x := p.X.At(s.From)
	fmt.Fprintf(b, "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%.1f\"><title>%s</title></rect>\n",
		strings.TrimSpace(class), x, top, max(p.X.At(s.To)-x, 1), p.Height-top, html.EscapeString(s.Title))
}

// columns draws the series upon each other, the first lowest.
func (p *Panel) columns(b *strings.Builder, y Scale) {
	if len(p.Series[0].X) == 0 {
		return
	}
	under := make([]float64, len(p.Series[0].X))
	for _, s := range p.Series {
		fmt.Fprintf(b, "<g class=\"%s\">\n", s.Class)
		for i, v := range s.Y {
			if v == 0 {
				continue
			}
			low, high := y.At(under[i]), y.At(under[i]+v)
			under[i] += v
			width := p.X.To - p.X.At(s.X[i])
			if i+1 < len(s.X) {
				width = p.X.At(s.X[i+1]) - p.X.At(s.X[i])
			}
			fmt.Fprintf(b, "<rect class=\"box\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", p.X.At(s.X[i])+0.5, high, max(width-1, 1), low-high)
		}
		b.WriteString("</g>\n")
	}
}

// curve draws a series: lines, and a dot where a value stands alone.
func (s Series) curve(b *strings.Builder, x, y Scale) {
	class := "line"
	if s.Dash {
		class += " dash"
	}
	fmt.Fprintf(b, "<g class=\"%s\">\n", s.Class)
	for i := 0; i < len(s.Y); i++ {
		from := i
		for i < len(s.Y) && !math.IsNaN(s.Y[i]) {
			i++
		}
		switch i - from {
		case 0:
		case 1:
			fmt.Fprintf(b, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", x.At(s.X[from]), y.At(s.Y[from]))
		default:
			fmt.Fprintf(b, "<polyline class=\"%s\" points=\"", class)
			for j := from; j < i; j++ {
				fmt.Fprintf(b, "%.1f,%.1f ", x.At(s.X[j]), y.At(s.Y[j]))
			}
			b.WriteString("\"/>\n")
		}
	}
	b.WriteString("</g>\n")
}

// Range draws where the values of a figure lie: a line from the least to the most, a block
// from the median to the 99th percentile in the present colour, and a stroke at the median.
func Range(x Scale, least, middle, p99, most float64, about string) string {
	return fmt.Sprintf("<svg viewBox=\"0 0 %.0f 18\" role=\"img\" aria-label=\"%s\"><line class=\"range\" x1=\"%.1f\" x2=\"%.1f\" y1=\"9\" y2=\"9\"/><rect class=\"most\" x=\"%.1f\" y=\"5\" width=\"%.1f\" height=\"8\"/><line class=\"mid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"2\" y2=\"16\"/></svg>",
		x.To+x.From, html.EscapeString(about), x.At(least), max(x.At(most), x.At(least)+1), x.At(middle), max(x.At(p99)-x.At(middle), 0.5), x.At(middle), x.At(middle))
}
