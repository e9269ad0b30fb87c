package check

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// never is a time after every run.
const never = int64(math.MaxInt64)

// A world is the run as one pass over the records shows it. The machines read it and do not change
// it.
type world struct {
	records   []history.Record
	begin     history.Begin
	beginAt   int        // index of the record; -1: none
	endAt     int        // index of the end record; -1: none
	end       int64      // time of the last record
	zero      int64      // when the scenario's own clock began
	labStalls []interval // in which the lab itself stood still; none if hogged
	hogged    bool       // a fault of the scenario left no processor free
	pathEnds  int        // ends of connections that went over to a path
	settled   int64      // when the workload had ended and settled: the first end count; never
	bound     scenario.Bound
	slack     scenario.Slack

	faults       []*fault // in the order of their begin
	faultOf      map[int]*fault
	procs        table[history.Source, proc]
	nodes        table[int, node]
	incarnations table[addr.Incarnation, incarnation]
	conns        table[uint64, conn]
	windows      table[uint64, window]
	sessions     table[history.Source, session]
	callOf       map[int]int     // the record of the call of a return, by its own
	hanging      map[callKey]int // calls that never returned: their records

	// How far the machines have read: prefix and rma keep these.
	flows table[history.ConnEnd, flow]        // by the sending end
	begun map[history.ConnEnd]stamped[uint64] // highest operation, by its initiator
}

// A fault is one of the run.
type fault struct {
	*history.Fault
	begin, end int64 // end: never, if it has none
	index      int   // of its record
	endIndex   int   // of the record of its end; -1: none
	closing    *history.FaultEnd
	ailed      map[int]bool // see world.ailed; nil: not asked for yet
}

// idle reports whether a fault has ended and never did anything, as a stop of a
// process that was not there.
func (f *fault) idle() bool { return f.closing != nil && f.closing.Fired == 0 }

// A proc is one process of a cluster.
type proc struct {
	source     history.Source
	start, end int64
	endIndex   int
	endedBy    history.Did
	stops      []interval
	asked      int64 // when it was asked to end in order
}

// An interval is from From to To, both included.
type interval struct{ from, to int64 }

// A node is one machine.
type node struct {
	id           int
	daemons      []*proc        // in the order of their start
	incarnations []*incarnation // in the order in which they began
	apps         []*proc
}

// An incarnation is one generation of a node ID.
type incarnation struct {
	incarnation addr.Incarnation
	node        int // -1: it never spoke
	born        int64
	gone        int64 // its process ended, it was reset, or the node has another incarnation
	killed      bool  // its process ended
	why         int   // index of the record that says that it is gone; -1
	// notices are the known peers of observers that were notified of its end.
	notices []*knownPeer
}

// A conn is a connection as its ends record it.
type conn struct {
	nonce uint64
	ends  [2]connEnd // client, server
}

// A callKey is one call.
type callKey struct {
	source history.Source
	id     uint64
}

// A connEnd is one end of a connection.
type connEnd struct {
	source        history.Source
	local, remote addr.Incarnation
	opened        int64 // never: it did not say
	openIndex     int
	closed        int64 // never: it did not say
	closeIndex    int
	how           string
}

// unknownEnd is an end that no record has.
var unknownEnd = connEnd{opened: never, closed: never, openIndex: -1, closeIndex: -1}

// orderly reports whether the end was closed in order, by its own application or the other one.
func (e *connEnd) orderly() bool { return e.how == history.HowClose || e.how == history.HowEOF }

// unharmed reports whether one end of a connection is open, or has ended because an application
// closed it. The other end may have been closed a moment after this one noticed.
func (w *world) unharmed(c *conn, side int) bool {
	e, other := &c.ends[side], &c.ends[1-side]
	return e.closed == never || e.orderly() || e.how == "ECONNRESET" && other.closed <= w.soonAfter(e.closed) && other.orderly()
}

// soonAfter is until when the reason for something at a time may be seen.
func (w *world) soonAfter(at int64) int64 { return at + w.order() + int64(time.Second) }

// A window is registered memory.
type window struct {
	*history.Window
	gone int64
}

// A session is a source's knowledge of nodes: which incarnations it knew when.
type session struct {
	source history.Source
	self   []stamped[addr.Incarnation]
	known  map[addr.Incarnation]*knownPeer
	// past are known peers that ended with an incarnation of the source, of incarnations that
	// it knows again.
	past map[addr.Incarnation][]*knownPeer
	// live are the generations that it knows last, of other nodes, and the record of that.
	live   map[addr.NodeID]addr.Generation
	liveAt int // -1: it never said
}

// A stamped is a value and since when it holds.
type stamped[T any] struct {
	at    int64
	index int
	v     T
}

// indexOf returns the record of a value, -1 if there is none.
func indexOf[T comparable](s stamped[T]) int {
	if s == (stamped[T]{}) {
		return -1
	}
	return s.index
}

// A knownPeer is how long a source knew an incarnation.
type knownPeer struct {
	since      int64
	sinceIndex int
	removed    int64  // the event; never: none
	index      int    // of the removed event; -1
	cleared    int64  // its own incarnation ended, so it forgot; never
	own        *fault // of the source, by which it was notified of the end of an incarnation that went on
}

func sideIndex(s history.Side) int {
	if s == history.Server {
		return 1
	}
	return 0
}

// newWorld makes the world of a history.
func newWorld(records []history.Record) *world {
	w := &world{records: records, beginAt: -1, endAt: -1, settled: never,
		faultOf: map[int]*fault{}, callOf: map[int]int{}, hanging: map[callKey]int{}, begun: map[history.ConnEnd]stamped[uint64]{}}
	for i := range records {
		w.take(i, &records[i])
	}
	slices.SortStableFunc(w.faults, func(a, b *fault) int { return cmp.Compare(a.begin, b.begin) })
	w.bound = scenario.Detection(w.begin.Detection).Bound()
	w.slack = scenario.Lab(w.begin.Lab).Slack()
	if w.hogged {
		w.labStalls = nil
	}
	w.notice()
	return w
}

// take adds one record.
func (w *world) take(i int, r *history.Record) {
	w.end = max(w.end, r.At)
	switch b := r.Body.(type) {
	case *history.Begin:
		if w.beginAt < 0 {
			w.begin, w.beginAt = *b, i
		}
	case *history.Timeline:
		w.zero = r.At
	case *history.End:
		w.endAt = i
	case *history.Fault:
		f := &fault{Fault: b, begin: r.At, end: never, index: i, endIndex: -1}
		if b.Since > 0 {
			f.begin = min(b.Since, r.At)
		}
		w.faults = append(w.faults, f)
		w.hogged = w.hogged || b.What == "cpu" || strings.HasPrefix(b.What, "cpu ")
		w.faultOf[b.ID] = f
	case *history.Resources:
		if b.Phase == history.PhaseEnd {
			w.settled = min(w.settled, r.At)
		}
	case *history.Stall:
		w.labStalls = append(w.labStalls, interval{r.At - b.For, r.At})
	case *history.Paths:
		w.pathEnds += b.New
	case *history.FaultEnd:
		if f := w.faultOf[b.ID]; f != nil && f.endIndex < 0 {
			f.end, f.endIndex, f.closing = r.At, i, b
		}
	case *history.Process:
		w.process(i, r.At, b)
	case *history.Event:
		w.event(i, r, b)
	case *history.View:
		w.view(i, r, b)
	case *history.Call:
		w.hanging[callKey{r.Source, b.ID}] = i
	case *history.Return:
		key := callKey{r.Source, b.ID}
		w.callOf[i] = recordOf(w.hanging, key)
		delete(w.hanging, key)
	case *history.Opened:
		w.opened(i, r, b)
	case *history.Closed:
		if e := w.endOf(b.ConnEnd); e.closed == never {
			e.closed, e.closeIndex, e.how = r.At, i, b.How
			if e.opened == never {
				e.source = r.Source
			}
		}
	case *history.Window:
		w.windows.of(b.ID, window{b, never})
	case *history.WindowGone:
		if x := w.windows.get(b.ID); x != nil {
			x.gone = min(x.gone, r.At)
		}
	}
}

// node returns a node.
func (w *world) node(id int) *node { return w.nodes.of(id, node{id: id}) }

// at returns a node to read, an empty one if no record has it.
func (w *world) at(id int) *node {
	if s := w.nodes.get(id); s != nil {
		return s
	}
	return &node{}
}

// process follows a process.
func (w *world) process(i int, at int64, b *history.Process) {
	known := len(w.procs.list)
	p := w.procs.of(b.Target, proc{source: b.Target, start: at, end: never, endIndex: -1, asked: never})
	if s := w.node(b.Target.Node); len(w.procs.list) > known {
		if b.Target.Role == history.RoleDaemon {
			s.daemons = append(s.daemons, p)
		} else {
			s.apps = append(s.apps, p)
		}
	}
	switch b.Did {
	case history.DidTerminate:
		p.asked = min(p.asked, at)
	case history.DidStop:
		p.stops = append(p.stops, interval{at, never})
	case history.DidContinue:
		if n := len(p.stops); n > 0 && p.stops[n-1].to == never {
			p.stops[n-1].to = at
		}
	case history.DidKill, history.DidExit, history.DidCrash:
		if p.end == never {
			p.end, p.endIndex, p.endedBy = at, i, b.Did
		}
	}
	if p.end == at && p.endIndex == i && b.Target.Role == history.RoleDaemon {
		for _, l := range w.node(b.Target.Node).incarnations {
			w.goneBy(l, at, i, true)
		}
	}
}

// goneBy ends an incarnation.
func (w *world) goneBy(l *incarnation, at int64, index int, killed bool) {
	if l.gone == never {
		l.gone, l.why, l.killed = at, index, killed
	}
}

// incarnation returns an incarnation; it is born when it is first mentioned.
func (w *world) incarnation(l addr.Incarnation, at int64) *incarnation {
	return w.incarnations.of(l, incarnation{incarnation: l, node: -1, born: at, gone: never, why: -1})
}

// session returns the session of a source.
func (w *world) session(s history.Source) *session {
	if x := w.sessions.get(s); x != nil {
		return x
	}
	return w.sessions.of(s, session{source: s, known: map[addr.Incarnation]*knownPeer{}, past: map[addr.Incarnation][]*knownPeer{},
		live: map[addr.NodeID]addr.Generation{}, liveAt: -1})
}

// event follows the events of which a source is notified.
func (w *world) event(i int, r *history.Record, b *history.Event) {
	s := w.session(r.Source)
	switch b.What {
	case history.EventSelf:
		w.self(i, r, b.Subject)
		s.liveAt = i
	case history.EventReset:
		l := w.incarnation(b.Subject, r.At)
		w.goneBy(l, r.At, i, false)
		s.forget(r.At)
	case history.EventAdded:
		w.incarnation(b.Subject, r.At)
		s.learn(b.Subject, r.At, i)
		s.live[b.Subject.Node], s.liveAt = b.Subject.Generation, i
	case history.EventRemoved:
		w.incarnation(b.Subject, r.At)
		a := s.known[b.Subject]
		if a == nil {
			a = s.learn(b.Subject, r.At, i)
		}
		if a.removed == never {
			a.removed, a.index = r.At, i
		}
		if s.liveAt = i; s.live[b.Subject.Node] == b.Subject.Generation {
			delete(s.live, b.Subject.Node)
		}
	}
}

// self gives the node of a source an incarnation.
func (w *world) self(i int, r *history.Record, subject addr.Incarnation) {
	s := w.session(r.Source)
	if n := len(s.self); n == 0 || s.self[n-1].v != subject {
		s.self = append(s.self, stamped[addr.Incarnation]{r.At, i, subject})
		s.forget(r.At)
	}
	l := w.incarnation(subject, r.At)
	if l.node >= 0 {
		return
	}
	l.node = r.Source.Node
	sl := w.node(l.node)
	for _, old := range sl.incarnations {
		w.goneBy(old, r.At, i, false)
	}
	sl.incarnations = append(sl.incarnations, l)
}

// view follows the knowledge that a source gets by asking.
func (w *world) view(i int, r *history.Record, b *history.View) {
	s := w.session(r.Source)
	clear(s.live)
	s.liveAt = i
	for _, m := range b.Live {
		w.incarnation(m.Incarnation, r.At)
		if m.Incarnation != b.Observer {
			s.learn(m.Incarnation, r.At, i)
			s.live[m.Incarnation.Node] = m.Incarnation.Generation
		}
	}
}

// learn returns the record of a known incarnation, a new one if there is none.
func (s *session) learn(l addr.Incarnation, at int64, index int) *knownPeer {
	a := s.known[l]
	if a == nil || a.cleared != never { // to a new incarnation of the source every node is new
		if a != nil {
			s.past[l] = append(s.past[l], a)
		}
		a = &knownPeer{since: at, sinceIndex: index, removed: never, index: -1, cleared: never}
		s.known[l] = a
	}
	return a
}

// ever returns all that was known of an incarnation, the first one first.
func (s *session) ever(l addr.Incarnation) []*knownPeer {
	if a := s.known[l]; a != nil {
		return append(slices.Clone(s.past[l]), a)
	}
	return nil
}

// forget ends a source's knowledge, with its own incarnation.
func (s *session) forget(at int64) {
	clear(s.live)
	for _, a := range s.known {
		if a.cleared == never {
			a.cleared = at
		}
	}
}

// connEnd returns one end of a connection to read.
func (w *world) connEnd(e history.ConnEnd) connEnd {
	if c := w.conns.get(e.Conn); c != nil {
		return c.ends[sideIndex(e.Side)]
	}
	return unknownEnd
}

// endOf returns one end of a connection to write.
func (w *world) endOf(e history.ConnEnd) *connEnd {
	c := w.conns.of(e.Conn, conn{e.Conn, [2]connEnd{unknownEnd, unknownEnd}})
	return &c.ends[sideIndex(e.Side)]
}

func (w *world) opened(i int, r *history.Record, b *history.Opened) {
	e := w.endOf(b.ConnEnd)
	if e.opened == never {
		e.source, e.local, e.remote, e.opened, e.openIndex = r.Source, b.Local, b.Remote, r.At, i
	}
}

// nodeOf returns the node of an incarnation, -1 if it is not known.
func (w *world) nodeOf(l addr.Incarnation) int {
	if x := w.incarnations.get(l); x != nil {
		return x.node
	}
	return -1
}

// nodes returns the nodes of a connection's ends, -1 if one is not known.
func (w *world) nodesOf(c *conn) (a, b int) {
	return w.nodeOfEnd(c, 0), w.nodeOfEnd(c, 1)
}

func (w *world) nodeOfEnd(c *conn, side int) int {
	if e := c.ends[side]; e.opened != never {
		return e.source.Node
	}
	if e := c.ends[1-side]; e.opened != never {
		return w.nodeOf(e.remote)
	}
	return -1
}

// within returns d and the lab's slack in nanoseconds.
func (w *world) within(d time.Duration) int64 { return int64(d + w.slack.Time) }

// order is by how much records of different goroutines may be out of order.
func (w *world) order() int64 { return int64(w.slack.Order) }

// inOrder returns the keys of a map to records in the order of these.
func inOrder[K comparable](all map[K]int) []K {
	return slices.SortedFunc(maps.Keys(all), func(a, b K) int { return cmp.Compare(all[a], all[b]) })
}

// recordOf returns the record that a map has for a key, -1 if it has none.
func recordOf[K comparable](all map[K]int, key K) int {
	if i, known := all[key]; known {
		return i
	}
	return -1
}
