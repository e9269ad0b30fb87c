package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/chart"
)

// A graph is curves of one run or of two, one panel below the other by one clock.
type graph struct {
	x     chart.Scale
	marks []chart.Mark
	runs  []graphRun
}

// A graphRun is one run of a graph.
type graphRun struct {
	name   string
	class  string // of its curves
	curves *Curves
	faults []chart.Shade
}

// newAxis returns the axis of a time, in ns of the scenario's clock.
func newAxis(from, to int64) (chart.Scale, []chart.Mark) {
	x := chart.Scale{Low: float64(from), High: float64(max(to, from+1)), From: chart.Left, To: chart.Width - chart.Right}
	step := int64(math.Round(max(chart.Step(x.High-x.Low, 12), 1)))
	var marks []chart.Mark
	for at := -(-from / step) * step; at <= to; at += step {
		if at >= from {
			marks = append(marks, chart.Mark{At: float64(at), Label: time.Duration(at).String()})
		}
	}
	return x, marks
}

// shades joins faults that overlap to the parts of the axis that they last.
func shades(faults []faultEntry, zero, end int64, class string) []chart.Shade {
	faults = slices.SortedFunc(slices.Values(faults), func(a, b faultEntry) int { return int(min(max(a.Begin-b.Begin, -1), 1)) })
	var all []chart.Shade
	for _, f := range faults {
		to := f.End
		if to == 0 {
			to = end
		}
		s := chart.Shade{From: float64(f.Begin - zero), To: float64(to - zero), Class: class, Title: f.What}
		if n := len(all); n > 0 && s.From <= all[n-1].To {
			last := &all[n-1]
			last.To = max(last.To, s.To)
			if len(last.Title) < 200 && !strings.Contains(last.Title, s.Title) {
				last.Title += ", " + s.Title
			}
			continue
		}
		all = append(all, s)
	}
	return all
}

// graph shows throughput, latency and errors over time.
func (p *page) graph(g *graph) {
	p.panel(g, "Throughput", "a second: bytes received in messages, and bytes of RMA operations that succeeded", []quantity{
		{"messages", "no application received a byte", func(c *Curves, i int) float64 { return float64(c.Messages[i]) }},
		{"RMA", "no RMA operation succeeded", func(c *Curves, i int) float64 { return float64(c.RMA[i]) }},
	}, &chart.Panel{Height: 130, Label: amountOf})
	for _, name := range latencies {
		of := func(c *Curves, i int) Spread {
			if all := c.Latency[name]; all != nil {
				return all[i]
			}
			return Spread{}
		}
		why := "no such call succeeded"
		p.panel(g, "Latency: "+name, "of calls that succeeded, when they began; logarithmic scale", []quantity{
			{"median", why, func(c *Curves, i int) float64 { return timeOf(of(c, i).Count, of(c, i).P50) }},
			{"slowest", "", func(c *Curves, i int) float64 { return timeOf(of(c, i).Count, of(c, i).Max) }},
		}, &chart.Panel{Height: 100, Label: durOf, Log: true})
	}
	p.errors(g)
}

// A quantity is one value of each step of the curves, NaN: none. Why is why there is
// none at all.
type quantity struct {
	name, why string
	of        func(*Curves, int) float64
}

// timeOf is a time on a logarithmic scale, where 0, which virtual time knows, has no place.
func timeOf(count int, ns int64) float64 {
	if count == 0 {
		return math.NaN()
	}
	return float64(max(ns, 1e3))
}

func amountOf(v float64) string { return amount(int64(v)) }
func durOf(v float64) string    { return dur(int64(v)) }

// panel shows quantities of all runs: the colour is the run's, a dashed curve the second
// quantity.
func (p *page) panel(g *graph, title, about string, all []quantity, c *chart.Panel) {
	some := false
	for _, run := range g.runs {
		x := run.curves.middles()
		for k, q := range all {
			y := make([]float64, len(x))
			for i := range y {
				y[i] = q.of(run.curves, i)
				some = some || y[i] > 0
			}
			c.Series = append(c.Series, chart.Series{Class: run.class, Dash: k > 0, X: x, Y: y})
		}
	}
	p.caption(g, title, about)
	for k, q := range all {
		p.f("<span><i class=\"k%s\"></i>%s</span>", raw(map[bool]string{true: " dash"}[k > 0]), q.name)
	}
	c.Hits = g.hits(all, c.Label)
	p.picture(g, c, some, all[0].why)
}

// caption begins a figure, with the names of the runs if there are several.
func (p *page) caption(g *graph, title, about string) {
	p.f("<figure><figcaption>%s<span class=\"about\">%s</span>", title, about)
	if len(g.runs) > 1 {
		for _, run := range g.runs {
			p.f("<span class=\"%s\"><i class=\"k box\"></i>%s</span>", run.class, run.name)
		}
	}
}

// picture ends a figure: the panel, or why there is nothing to draw.
func (p *page) picture(g *graph, c *chart.Panel, some bool, why string) {
	p.f("</figcaption>")
	if some {
		c.X, c.Marks = g.x, g.marks
		for _, run := range g.runs {
			c.Shades = append(c.Shades, run.faults...)
		}
		p.f("\n%s", raw(c.SVG()))
	} else {
		p.f("<p class=\"mute\">Nothing to show: %s.</p>", why)
	}
	p.f("</figure>\n")
}

// hits are the values of each step as text; of several runs, of the first one's steps.
func (g *graph) hits(all []quantity, label func(float64) string) []chart.Shade {
	var hits []chart.Shade
	first := g.runs[0].curves
	for i := range first.Messages {
		at := first.From + int64(i)*first.Step
		text := dur(at) + "…" + dur(at+first.Step)
		for _, run := range g.runs {
			j := i
			if run.curves.From != first.From || run.curves.Step != first.Step {
				j = int((at - run.curves.From) / run.curves.Step)
			}
			if j < 0 || j >= len(run.curves.Messages) {
				continue
			}
			for _, q := range all {
				if v := q.of(run.curves, j); !math.IsNaN(v) {
					text += "\n" + strings.TrimSpace(run.name+" "+q.name+" ") + " " + label(v)
				}
			}
		}
		hits = append(hits, chart.Shade{From: float64(at), To: float64(at + first.Step), Title: text})
	}
	return hits
}

// middles returns the middle of each step.
func (c *Curves) middles() []float64 {
	x := make([]float64, len(c.Messages))
	for i := range x {
		x[i] = float64(c.From) + (float64(i)+0.5)*float64(c.Step)
	}
	return x
}

// maxSeries is how many errnos have a colour of their own; the rest are one.
const maxSeries = 4

// errors shows how many calls failed: of one run by errno, of two in all.
func (p *page) errors(g *graph) {
	const title, why = "Errors", "no call failed and no connection was reset"
	about := fmt.Sprintf("calls that failed and connections that were reset, in each %s", dur(g.runs[0].curves.Step))
	if len(g.runs) > 1 {
		q := quantity{"in all", why, func(c *Curves, i int) (sum float64) {
			for _, all := range c.Errors {
				sum += float64(all[i])
			}
			return sum
		}}
		p.panel(g, title, about, []quantity{q}, &chart.Panel{Height: 90, Label: countOf})
		return
	}
	run := g.runs[0]
	c := &chart.Panel{Height: 90, Label: countOf, Stack: true}
	x := run.curves.middles()
	for i := range x {
		x[i] -= float64(run.curves.Step) / 2
	}
	var all []quantity
	p.caption(g, title, about)
	for k, status := range run.curves.statuses() {
		counts := run.curves.Errors[status]
		class := fmt.Sprintf("s%d", min(k, maxSeries-1)+2)
		p.f("<span class=\"%s\"><i class=\"k box\"></i>%s: %d</span>", class, status, total(counts))
		all = append(all, quantity{status, "", func(c *Curves, i int) float64 { return none(float64(counts[i])) }})
		y := make([]float64, len(x))
		for i := range y {
			y[i] = float64(counts[i])
		}
		c.Series = append(c.Series, chart.Series{Class: class, X: x, Y: y})
	}
	c.Hits = g.hits(all, countOf)
	p.picture(g, c, len(all) > 0, why)
}

// none is NaN for 0, which is not worth a line of text.
func none(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

func countOf(v float64) string { return fmt.Sprintf("%.4g", v) }
