package report

import (
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/internal/chart"
)

// Limits of a timeline.
const (
	maxStreams = 48  // nodes that are drawn
	maxFaults  = 400 // faults that are drawn one by one
	maxRows    = 12  // of faults of links
)

// The measures of a timeline, in units of its own.
const (
	streamH = 30
	barH    = 14
	rowH    = 13
	topPad  = 22
	// grain is how near two marks of a kind may be before they are one.
	grain = 3.0
)

// A timeline is a scene with a scale.
type timeline struct {
	page
	*scene
	streams []*stream // that are drawn
	scale   chart.Scale
	ticks   []chart.Mark
	y       map[int]float64
}

// drawTimeline draws the incarnations of every node.
func drawTimeline(s *scene) string {
	t := &timeline{scene: s, y: map[int]float64{}}
	t.scale, t.ticks = newAxis(-s.zero, s.end)
	t.streams = chooseStreams(s.streams)
	rows := t.linkRows()
	top := float64(topPad + len(rows)*rowH + 6)
	height := top + float64(len(t.streams))*streamH + 8
	t.f("<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"what became of every node\">\n", chart.Width, int(height))
	t.f("<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" class=\"hatch\"/></pattern></defs>\n")
	for i, l := range t.streams {
		t.y[l.node] = top + float64(i)*streamH
	}
	t.axis(height)
	for i, row := range rows {
		t.linkRow(float64(topPad+i*rowH), row)
	}
	for _, l := range t.streams {
		t.stream(l)
	}
	t.nodeFaults()
	t.f("</svg>\n")
	return t.String()
}

// chooseStreams returns the streams that are drawn: if there are too many, those of
// the host and of nodes that something was done to first.
func chooseStreams(all []*stream) []*stream {
	if len(all) <= maxStreams {
		return all
	}
	chosen := slices.Clone(all)
	slices.SortStableFunc(chosen, func(a, b *stream) int {
		return boolInt(b.touched || b.node == 0) - boolInt(a.touched || a.node == 0)
	})
	chosen = chosen[:maxStreams]
	slices.SortFunc(chosen, func(a, b *stream) int { return a.node - b.node })
	return chosen
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// x returns the place of a time.
func (t *timeline) x(at int64) float64 { return t.scale.At(float64(at)) }

// axis draws the scale of time.
func (t *timeline) axis(height float64) {
	for _, m := range t.ticks {
		x := t.scale.At(m.At)
		t.f("<line class=\"g\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/><text class=\"t\" x=\"%.1f\" y=\"12\" text-anchor=\"middle\">%s</text>\n",
			x, topPad-6, x, height-4, x, m.Label)
	}
}

// stream draws one node: its incarnations, its pauses, the events of its application.
func (t *timeline) stream(l *stream) {
	y := t.y[l.node]
	t.f("<text x=\"4\" y=\"%.1f\">node %s%s</text>\n", y+barH-2, t.begin.NodeLabel(l.node), raw(map[bool]string{true: " (host)"}[l.node == 0]))
	runs := 0
	for _, b := range l.bars {
		x, w := t.x(b.from), max(t.x(b.to)-t.x(b.from), 0.5)
		if b.kind == "stop" {
			t.f("<rect class=\"stop\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>%s %s…%s</title></rect>\n", x, y, w, barH, b.label, dur(b.from), dur(b.to))
			continue
		}
		class := []string{"run", "run2"}[runs%2]
		runs++
		t.f("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\"><title>incarnation %s, %s…%s</title></rect>\n", class, x, y, w, barH, b.label, dur(b.from), dur(b.to))
		if w > 30 {
			t.f("<text class=\"on%s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, x+4, y+barH-3, b.label)
		}
	}
	t.marks(l, y)
}

// marks draws events; those too near to be distinguished are one mark.
func (t *timeline) marks(l *stream, y float64) {
	type last struct {
		x     float64
		label string
		count int
	}
	for _, kind := range []string{"added", "removed", "reset", "end"} {
		var near *last
		flush := func() {
			if near == nil {
				return
			}
			label := near.label
			if near.count > 1 {
				label = fmt.Sprintf("%s, and %d more", label, near.count-1)
			}
			t.mark(kind, near.x, y, label)
		}
		for _, m := range l.marks {
			if m.kind != kind {
				continue
			}
			if x := t.x(m.at); near == nil || x-near.x > grain {
				flush()
				near = &last{x, dur(m.at) + ": " + m.label, 1}
			} else {
				near.count++
			}
		}
		flush()
	}
}

// mark draws one sign, each kind with a shape of its own.
func (t *timeline) mark(kind string, x, y float64, label string) {
	b := y + barH // below the bar
	switch kind {
	case "added":
		t.f("<path class=\"added\" d=\"M%.1f %.1fl4 8h-8z\">", x, b+2)
	case "removed":
		t.f("<path class=\"removed\" d=\"M%.1f %.1fl4 -8h-8z\">", x, b+10)
	case "reset":
		t.f("<path class=\"reset\" d=\"M%.1f %.1fl7 7m0 -7l-7 7\">", x-3.5, b+2.5)
	default:
		t.f("<path class=\"end\" d=\"M%.1f %.1fv%d\">", x, y-2, barH+4)
	}
	t.f("<title>%s</title></path>\n", label)
}

// nodeFaults frames the nodes that a fault touches as a whole, while it lasts.
func (t *timeline) nodeFaults() {
	for i, f := range t.faults {
		if i == maxFaults {
			return
		}
		for _, node := range slices.Concat(f.Nodes, f.Apps) {
			y, drawn := t.y[node]
			if !drawn {
				continue
			}
			x := t.x(f.from)
			t.f("<rect class=\"fault\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>%s, %s…%s: %s</title></rect>\n",
				x-1, y-3, max(t.x(f.to)-x, 2)+2, barH+16, f.What, dur(f.from), dur(f.to), f.outcome())
			if w := t.x(f.to) - x; w > float64(len(f.What))*5.5+16 {
				t.f("<text class=\"t\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x+8, y+barH+10, f.What)
			}
		}
	}
}

// outcome describes the effect of a fault.
func (f *sceneFault) outcome() string {
	switch {
	case f.closing == nil:
		return "not taken back"
	case f.closing.Err != "":
		return f.closing.Err
	case f.closing.Proof != "":
		return f.closing.Proof
	}
	return fmt.Sprintf("fired %d times", f.closing.Fired)
}

// linkRows puts the faults of links into rows, so that none hides another.
func (t *timeline) linkRows() [][]*sceneFault {
	var rows [][]*sceneFault
	drawn := 0
	for _, f := range t.faults {
		if len(f.Ways) == 0 || drawn == maxFaults {
			continue
		}
		drawn++
		free := slices.IndexFunc(rows, func(row []*sceneFault) bool { return row[len(row)-1].to <= f.from })
		switch {
		case free >= 0:
			rows[free] = append(rows[free], f)
		case len(rows) < maxRows:
			rows = append(rows, []*sceneFault{f})
		default:
			rows[maxRows-1] = append(rows[maxRows-1], f)
		}
	}
	return rows
}

func (t *timeline) linkRow(y float64, row []*sceneFault) {
	t.f("<text class=\"t\" x=\"4\" y=\"%.1f\">links</text>\n", y+9)
	for _, f := range row {
		x := t.x(f.from)
		w := max(t.x(f.to)-x, 1)
		t.f("<rect class=\"fault\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>%s, %s, %s…%s: %s</title></rect>\n",
			x, y, w, rowH-2, f.What, t.touches(f), dur(f.from), dur(f.to), f.outcome())
		if label := f.What + "  " + t.touches(f); w > float64(len(label))*5.5 {
			t.f("<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x+4, y+9, label)
		}
	}
}
