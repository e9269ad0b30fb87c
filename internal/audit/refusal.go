package audit

import "time"

// Bounds on the lines that refused peers can cause.
const (
	// refusalPeriod is the time in which equal refusals produce two lines at most: the first, and
	// one that counts the others.
	refusalPeriod = time.Minute
	// maxRefusals bounds the different refusals of a period. Further ones are
	// counted together.
	maxRefusals = 128
)

// A Refusal is a connect or a bind that a rule of this node refused. Equal ones
// are counted.
type Refusal struct {
	Event string // ConnectRefused, BindRefused or ServeRefused
	Node  string // UUID of the peer's node; empty: this node
	Name  string // the peer's name
	UID   uint32 // the application's user, as reported by its node; not of ServeRefused
	Port  uint16
	Rule  string

	Incarnation string // of the peer, ID.GENERATION
}

// further names the difference between refusals that are counted together, by their event.
var further = map[string]string{ConnectRefused: "peers and ports", BindRefused: "users and ports", ServeRefused: "nodes and names"}

// refusals are those of the current period.
type refusals struct {
	counts map[Refusal]uint64 // those after the first
	others map[string]uint64  // beyond maxRefusals, by their event
}

// Refused records that a rule refused r: with a line, or a count.
func (l *Log) Refused(r Refusal) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.refusals.counts[r]
	switch {
	case known:
		l.refusals.counts[r] = n + 1
	case len(l.refusals.counts) < maxRefusals:
		l.refusals.counts[r] = 0
		l.enqueue(r.event(0))
	default:
		l.refusals.others[r.Event]++
	}
}

func (r Refusal) event(count uint64) Event {
	e := Event{Event: r.Event, Node: r.Node, Name: r.Name, Incarnation: r.Incarnation, Port: r.Port, Rule: r.Rule, Count: count}
	if r.Event != ServeRefused {
		e.UID = &r.UID
	}
	return e
}

// flushRefusals writes the counts of a period and begins the next. l.mu is held.
func (l *Log) flushRefusals() {
	for r, n := range l.refusals.counts {
		if n > 0 {
			l.enqueue(r.event(n))
		}
	}
	clear(l.refusals.counts)
	for event, n := range l.refusals.others {
		l.enqueue(Event{Event: event, Count: n, Text: "further " + further[event]})
	}
	clear(l.refusals.others)
}
