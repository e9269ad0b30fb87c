package report

import (
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// A scene is the content of a timeline, taken from the records.
type scene struct {
	begin   *history.Begin
	zero    int64 // of the scenario's clock, by which all times of a scene are, on the run's
	end     int64
	streams []*stream // by node
	faults  []*sceneFault
}

// A stream is one node.
type stream struct {
	node    int
	bars    []bar // incarnations of its daemon
	marks   []mark
	touched bool
}

// A bar is something that lasts.
type bar struct {
	from, to int64
	open     bool // it has not ended
	label    string
	kind     string // run, stop
}

// A mark is something that happened.
type mark struct {
	at    int64
	kind  string // removed, added, reset, end
	label string
}

// A sceneFault is one fault with its end.
type sceneFault struct {
	*history.Fault
	from, to int64 // to: the end of the run, if it has none
	ended    bool
	closing  *history.FaultEnd
}

// newScene takes a scene from records whose scenario began at zero.
func newScene(begin *history.Begin, records []history.Record, zero int64) *scene {
	s := &scene{begin: begin, zero: zero, end: -zero}
	byID := map[int]*sceneFault{}
	for i := range records {
		r := records[i]
		r.At -= zero
		s.end = max(s.end, r.At)
		switch b := r.Body.(type) {
		case *history.Fault:
			f := &sceneFault{Fault: b, from: r.At}
			if b.Since > 0 {
				f.from = min(b.Since-zero, r.At)
			}
			s.faults, byID[b.ID] = append(s.faults, f), f
		case *history.FaultEnd:
			if f := byID[b.ID]; f != nil && !f.ended {
				f.to, f.ended, f.closing = r.At, true, b
			}
		case *history.Process:
			if b.Target.Role == history.RoleDaemon {
				s.stream(b.Target.Node).process(r.At, b)
			}
		case *history.Event:
			s.event(&r, b)
		}
	}
	s.close()
	return s
}

// stream returns the stream of a node.
func (s *scene) stream(node int) *stream {
	for len(s.streams) <= node {
		s.streams = append(s.streams, &stream{node: len(s.streams)})
	}
	return s.streams[node]
}

// last returns the open bar of a kind, nil if there is none.
func (l *stream) last(kind string) *bar {
	for i := len(l.bars) - 1; i >= 0; i-- {
		if b := &l.bars[i]; b.kind == kind && b.open {
			return b
		}
	}
	return nil
}

func (l *stream) process(at int64, p *history.Process) {
	switch p.Did {
	case history.DidStart:
		l.bars = append(l.bars, bar{from: at, open: true, kind: "run"})
	case history.DidStop:
		l.bars = append(l.bars, bar{from: at, open: true, kind: "stop", label: "stands still"})
	case history.DidContinue:
		if b := l.last("stop"); b != nil {
			b.to, b.open = at, false
		}
	case history.DidKill, history.DidExit, history.DidCrash:
		if b := l.last("run"); b != nil {
			b.to, b.open = at, false
			l.marks = append(l.marks, mark{at, "end", "its process ends: " + string(p.Did)})
		}
		if b := l.last("stop"); b != nil {
			b.to, b.open = at, false
		}
	}
}

// event marks the events of an application; daemons report the same.
func (s *scene) event(r *history.Record, b *history.Event) {
	l := s.stream(r.Source.Node)
	if b.What == history.EventSelf {
		l.incarnation(r.At, b.Subject)
	}
	if r.Source.Role != history.RoleApp {
		return
	}
	switch b.What {
	case history.EventRemoved:
		l.marks = append(l.marks, mark{r.At, "removed", fmt.Sprintf("%s removed: %s", b.Subject, b.Reason)})
	case history.EventAdded:
		l.marks = append(l.marks, mark{r.At, "added", fmt.Sprintf("%s added", b.Subject)})
	case history.EventReset:
		l.marks = append(l.marks, mark{r.At, "reset", fmt.Sprintf("%s was given up by the others", b.Subject)})
	}
}

// incarnation names the present bar, and divides it if the process gets another incarnation.
func (l *stream) incarnation(at int64, incarnation addr.Incarnation) {
	b := l.last("run")
	if b == nil {
		l.bars = append(l.bars, bar{from: at, open: true, kind: "run", label: incarnation.String()})
		return
	}
	switch b.label {
	case incarnation.String():
	case "":
		b.label = incarnation.String()
	default:
		b.to, b.open = at, false
		l.bars = append(l.bars, bar{from: at, open: true, kind: "run", label: incarnation.String()})
	}
}

// close ends all open bars, and notes the nodes that faults touch.
func (s *scene) close() {
	s.end = max(s.end, 1-s.zero)
	for _, l := range s.streams {
		for i := range l.bars {
			if l.bars[i].open {
				l.bars[i].to = s.end
			}
		}
	}
	for _, f := range s.faults {
		if !f.ended {
			f.to = s.end
		}
		ids := slices.Concat(f.Nodes, f.Apps)
		for _, w := range f.Ways {
			ids = slices.Concat(ids, w.From, w.To)
		}
		for _, id := range ids {
			s.stream(id).touched = true
		}
	}
}

// entries returns the faults for report.json.
func (s *scene) entries() []faultEntry {
	var all []faultEntry
	for _, f := range s.faults {
		e := faultEntry{ID: f.ID, What: f.What, Begin: f.from + s.zero, Nodes: f.Nodes, Ways: f.Ways, Apps: f.Apps, Harm: f.Harm}
		if f.closing != nil {
			e.End, e.Fired, e.Proof, e.Err = f.to+s.zero, f.closing.Fired, f.closing.Proof, f.closing.Err
		}
		all = append(all, e)
	}
	return all
}

// touches names what a fault touches, for people.
func (s *scene) touches(f *sceneFault) string {
	var parts []string
	if len(f.Nodes) > 0 {
		parts = append(parts, "nodes "+s.begin.NodeLabels(f.Nodes))
	}
	if len(f.Apps) > 0 {
		parts = append(parts, "applications of "+s.begin.NodeLabels(f.Apps))
	}
	for _, w := range f.Ways {
		parts = append(parts, s.begin.NodeLabels(w.From)+" → "+s.begin.NodeLabels(w.To))
	}
	return join(parts, ", ", 8)
}

// join joins at most so many words.
func join(words []string, sep string, most int) string {
	out := ""
	for i, w := range words {
		if i == most {
			return out + fmt.Sprintf("%s… (%d)", sep, len(words))
		}
		if i > 0 {
			out += sep
		}
		out += w
	}
	return out
}
