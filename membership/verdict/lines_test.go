package verdict

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A cable is a line of a test's shell, which notes what it is asked for.
type cable struct{ Line }

type notes struct {
	wants, kept bool
	alive       time.Time
	did         []string
}

func (n *notes) Wants(addr.Incarnation) bool { return n.wants }
func (n *notes) Alive(*cable) time.Time      { return n.alive }
func (n *notes) Kept(*cable) bool            { return n.kept }
func (n *notes) DialLine(*cable, Node)       { n.did = append(n.did, "dial") }
func (n *notes) CloseLine(*cable)            { n.did = append(n.did, "close") }
func (n *notes) SendDoubt(*cable, Node)      { n.did = append(n.did, "doubt") }
func (n *notes) ReportLink(x Link)           { n.did = append(n.did, fmt.Sprint("evidence ", x.Evidence)) }
func (n *notes) LookLine(_ *cable, _ Node, d time.Duration) {
	n.did = append(n.did, fmt.Sprint("look ", d))
}

// linesOf returns the lifelines of the seat's member, whose UUID is below or above that of
// its one peer, and the peer's start.
func linesOf(t *testing.T, below bool) (*seat, *notes, *Lines[cable], Start) {
	t.Helper()
	s := newSeat(t)
	i := slices.IndexFunc(s.m.Nodes(), func(n Node) bool { return n.Incarnation == peerIncarnation })
	if i < 0 {
		t.Fatal("the peer is not in the table")
	}
	n := s.m.Nodes()[i]
	self := addr.UUID{} // below every other
	if !below {
		self[0] = 0xff
	}
	p := NewPace(nil, s.m, Fast(), s.now, s.now)
	shell := &notes{wants: true, alive: s.now}
	return s, shell, NewLines(self, &p, shell, func(l *cable) *Line { return &l.Line }), Start{n.UUID, n.Epoch}
}

// want holds a shell to what it was asked for since the last time.
func (n *notes) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(n.did, want) {
		t.Errorf("asked for %q, want %q", n.did, want)
	}
	n.did = nil
}

// TestTheLowerUUIDDials: a dial that fails is made again after a pause, one that brings a
// connection raises it, and its end is dialed at once.
func TestTheLowerUUIDDials(t *testing.T) {
	s, shell, lines, k := linesOf(t, true)
	lines.Maintain(s.now)
	lines.Maintain(s.now) // one is under way
	shell.want(t, "dial")
	l := lines.Find(k)
	n, ok := lines.Living(k)
	if raise, report := lines.Dialed(l, false, false, s.now); raise || !report || !ok {
		t.Errorf("a dial that failed: raise %v, report %v, the peer lives %v", raise, report, ok)
	}
	lines.Maintain(s.now.Add(lineRetry - 1))
	shell.want(t)
	lines.Maintain(s.now.Add(lineRetry))
	shell.want(t, "dial")
	if raise, report := lines.Dialed(l, true, true, s.now); raise || report {
		t.Errorf("a connection that shows an earlier incarnation: raise %v, report %v", raise, report)
	}
	if raise, report := lines.Dialed(l, true, false, s.now); !raise || !report {
		t.Errorf("a connection: raise %v, report %v", raise, report)
	}
	l.Raise(n.Incarnation)
	l.Up, l.Dialed = true, true
	if raise, _ := lines.Dialed(l, true, false, s.now); raise || lines.Accepts(l, n.Incarnation) {
		t.Error("a second connection takes the place of one that is not silent")
	}
	lines.Down(l, false)
	shell.want(t, "dial")
	lines.Down(l, false)
	shell.want(t) // the dial is under way
}

// TestTheHigherUUIDAccepts: it looks at the peer when a lifeline has ended, and one that is
// not needed any more is closed by the end that has dialed it.
func TestTheHigherUUIDAccepts(t *testing.T) {
	s, shell, lines, k := linesOf(t, false)
	lines.Maintain(s.now)
	shell.want(t)
	l := lines.Find(k)
	if !lines.Accepts(l, peerIncarnation) || lines.Accepts(l, addr.Incarnation{}) {
		t.Error("it takes what a peer without an incarnation opens, or not what one with it does")
	}
	l.Raise(peerIncarnation)
	l.Up = true
	lines.Down(l, false)
	shell.want(t, fmt.Sprint("look ", Fast().Redial))
	n, _ := lines.Living(k)
	lines.Looked(l, n, DialAlive, s.now)
	shell.want(t, fmt.Sprint("evidence ", LinkAlive))
	l.Up = true
	shell.wants = false
	lines.Maintain(s.now)
	shell.want(t, fmt.Sprint("evidence ", LinkAlive)) // closing it is the peer's part
	l.Dialed = true
	lines.Maintain(s.now)
	shell.want(t, "close")
}

// TestLinesOfStartsThatAreGoneAreForgotten, unless they have connections.
func TestLinesOfStartsThatAreGoneAreForgotten(t *testing.T) {
	s, shell, lines, _ := linesOf(t, true)
	gone := lines.At(Start{UUID: addr.UUID{9}, Epoch: 1})
	shell.kept = true
	lines.Maintain(s.now)
	if lines.Find(gone.Start) != gone {
		t.Error("a line with a connection is forgotten")
	}
	shell.kept = false
	lines.Maintain(s.now)
	if lines.Find(gone.Start) != nil || len(lines.All()) != 1 {
		t.Errorf("%d lines are left, want that of the peer", len(lines.All()))
	}
}
