package verdict

import (
	"bytes"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// lineRetry is the pause between two attempts to open a lifeline.
const lineRetry = time.Second

// A Start names one start of a node's process.
type Start struct {
	UUID  addr.UUID
	Epoch uint64
}

// A Line is the lifeline between this node and one start of another. A shell has it in its
// own type, beside the connections.
type Line struct {
	Lifeline
	Start
	Up      bool // there is a connection
	Dialed  bool // it was dialed here: this node gives the signs of life
	Dialing bool // a dial or a look is under way
	retryAt time.Time
}

// active reports whether there is a lifeline that is not silent.
func (l *Line) active() bool { return l.Up && !l.Silent() }

// A LineShell performs what Lines decide, and has the connections: L are its lines.
type LineShell[L any] interface {
	Wants(addr.Incarnation) bool // there is to be a lifeline to it
	Alive(*L) time.Time          // when its connection last gave a sign of life
	Kept(*L) bool                // it has connections beside the one that counts
	DialLine(*L, Node)           // opens the lifeline; Dialed takes the result
	// LookLine sees whether the incarnation is there within a limit, and ends the connection:
	// the peer is to dial the one that stays. Looked takes the result.
	LookLine(*L, Node, time.Duration)
	CloseLine(*L) // it is not needed any more
	SendDoubt(*L, Node)
	ReportLink(Link)
}

// Lines are the lifelines of a node. They decide which of them are opened, and when one that
// has ended is dialed again.
type Lines[L any] struct {
	self  addr.UUID
	pace  *Pace
	shell LineShell[L]
	line  func(*L) *Line
	at    map[Start]*L
	all   []*L // by their first use
}

// NewLines returns the lifelines of the node self. line returns the Line in a shell's line.
func NewLines[L any](self addr.UUID, p *Pace, shell LineShell[L], line func(*L) *Line) *Lines[L] {
	return &Lines[L]{self: self, pace: p, shell: shell, line: line, at: make(map[Start]*L)}
}

// All returns the lines, in the order of their first use.
func (x *Lines[L]) All() []*L { return x.all }

// Find returns the line to a start, nil if there is none.
func (x *Lines[L]) Find(k Start) *L { return x.at[k] }

// At returns the line to a start, a new one if there is none.
func (x *Lines[L]) At(k Start) *L {
	l := x.at[k]
	if l == nil {
		l = new(L)
		x.line(l).Start = k
		x.at[k] = l
		x.all = append(x.all, l)
	}
	return l
}

// WeDial reports whether this node dials the lifeline: the lower UUID does.
func (x *Lines[L]) WeDial(k Start) bool { return bytes.Compare(x.self[:], k.UUID[:]) < 0 }

// Living returns the incarnation of a start of a node, if the table has it.
func (x *Lines[L]) Living(k Start) (Node, bool) {
	for _, n := range x.pace.member.Nodes() {
		if n.UUID == k.UUID && n.Epoch == k.Epoch {
			return n, true
		}
	}
	return Node{}, false
}

// Maintain opens the lifelines that should be there, closes those that need not, reports to the
// member which incarnations are alive or silent, and forgets the lines of those that are
// gone. Without a host it also dials nodes that should dial and do not: a node that has no
// incarnation any more dials no other.
func (x *Lines[L]) Maintain(now time.Time) {
	nodes := x.pace.member.Nodes()
	living := make(map[Start]bool, len(nodes))
	x.pace.BeginLines()
	for _, n := range nodes {
		if n.Incarnation.Node == addr.Host || x.pace.host != nil {
			continue // the control session is the lifeline
		}
		k := Start{n.UUID, n.Epoch}
		living[k] = true
		if wanted := x.shell.Wants(n.Incarnation); wanted || x.at[k] != nil {
			x.maintain(x.At(k), n, wanted, now)
		}
	}
	x.all = slices.DeleteFunc(x.all, func(l *L) bool {
		b := x.line(l)
		gone := !living[b.Start] && !b.Up && !b.Dialing && !x.shell.Kept(l)
		if gone {
			delete(x.at, b.Start)
		}
		return gone
	})
}

func (x *Lines[L]) maintain(l *L, n Node, wanted bool, now time.Time) {
	b := x.line(l)
	if b.Up {
		e, doubt := x.pace.LineEvidence(&b.Lifeline, n.Incarnation, x.shell.Alive(l), now)
		x.report(l, n, e, doubt)
	}
	switch {
	case !wanted:
		if b.Up && b.Dialed {
			x.shell.CloseLine(l)
		}
	case b.active() || b.Dialing || now.Before(b.retryAt):
	case x.WeDial(b.Start):
		x.dial(l, n)
	case x.pace.member.Alone():
		x.look(l, n, x.pace.t.Silence)
	}
}

func (x *Lines[L]) dial(l *L, n Node) {
	x.line(l).Dialing = true
	x.shell.DialLine(l, n)
}

func (x *Lines[L]) look(l *L, n Node, limit time.Duration) {
	x.line(l).Dialing = true
	x.shell.LookLine(l, n, limit)
}

// report passes on the evidence about an incarnation, if there is any, and a doubt.
func (x *Lines[L]) report(l *L, n Node, e Evidence, doubt bool) {
	if doubt {
		x.shell.SendDoubt(l, n)
	}
	if e != 0 {
		x.shell.ReportLink(Link{Incarnation: n.Incarnation, Evidence: e})
	}
}

// Beats returns the lines on which this node gives a sign of life now.
func (x *Lines[L]) Beats(now time.Time) []*L {
	if !x.pace.Beat(now) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(x.all), func(l *L) bool {
		b := x.line(l)
		return !b.Up || !b.Dialed
	})
}

// Dialed takes the end of a dial: up, it has brought a connection; outlived, this node has
// another incarnation by now than it showed there. It returns whether the connection becomes
// the one that counts, which the caller performs, and whether the caller passes the result to Met.
func (x *Lines[L]) Dialed(l *L, up, outlived bool, now time.Time) (raise, report bool) {
	b := x.line(l)
	b.Dialing, b.retryAt = false, now.Add(lineRetry)
	switch {
	case up:
		return !outlived && !b.active(), !outlived
	case b.Up:
		return false, false // its silence has been reported
	}
	return false, true
}

// Looked takes the result of a look.
func (x *Lines[L]) Looked(l *L, n Node, met DialResult, now time.Time) {
	b := x.line(l)
	b.Dialing, b.retryAt = false, now.Add(lineRetry)
	x.Met(l, n, met, now)
}

// Met feeds the member what was seen of an incarnation.
func (x *Lines[L]) Met(l *L, n Node, met DialResult, now time.Time) {
	e, doubt := x.pace.Met(&x.line(l).Lifeline, n.Incarnation, met, now)
	x.report(l, n, e, doubt)
}

// Accepts reports whether a connection that a peer has opened becomes the one that counts, by
// the incarnation that the peer shows. Else it is only there to see that this node is, unless
// the peer gives signs of life on it: then Promotes decides, for the peer has lost the other.
func (x *Lines[L]) Accepts(l *L, shown addr.Incarnation) bool {
	return !x.line(l).Up && x.Promotes(l, shown)
}

// Promotes is Accepts for a connection on which the peer gives signs of life.
func (x *Lines[L]) Promotes(l *L, shown addr.Incarnation) bool {
	return !x.WeDial(x.line(l).Start) && shown != addr.Incarnation{}
}

// Down takes the end of the connection that counted. Unless it was wanted here, the peer is
// dialed or looked at at once: its last message may be out of date, and whether it answers is
// not. Both ends do: each of them has then its own evidence.
func (x *Lines[L]) Down(l *L, wanted bool) {
	b := x.line(l)
	b.Up = false
	n, ok := x.Living(b.Start)
	switch {
	case !ok, wanted, !x.shell.Wants(n.Incarnation):
	case !x.WeDial(b.Start):
		x.look(l, n, x.pace.t.Redial)
	case !b.Dialing:
		x.dial(l, n)
	}
}
