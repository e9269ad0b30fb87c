package verdict

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestEveryIncarnationHasItsWatchers: in a cluster of any size each incarnation but the host's has
// eight watchers, or all the others, and watches them.
func TestEveryIncarnationHasItsWatchers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 8, 9, 10, 11, 63, 64, 65, 200} {
		all := []Node{{Incarnation: hostIncarnation}}
		for i := range n {
			x := Node{Incarnation: addr.Incarnation{Node: addr.NodeID(i + 1), Generation: 1}}
			for b := range x.UUID {
				x.UUID[b] = byte(rng.Uint32())
			}
			all = append(all, x)
		}
		watched := make(map[addr.Incarnation]map[addr.Incarnation]bool, n)
		for i, x := range all[1:] {
			others := append(append([]Node(nil), all[:i+1]...), all[i+2:]...)
			watched[x.Incarnation] = Watched(x.UUID, others)
			if len(watched[x.Incarnation]) != min(8, n-1) || watched[x.Incarnation][hostIncarnation] || watched[x.Incarnation][x.Incarnation] {
				t.Fatalf("%d incarnations: %v watches %v", n, x.Incarnation, watched[x.Incarnation])
			}
		}
		for a, list := range watched {
			for b := range list {
				if !watched[b][a] {
					t.Errorf("%d incarnations: %v watches %v, and is not watched by it", n, a, b)
				}
			}
		}
	}
}

// newLonelySeat returns a member without a host, among twelve others.
func newLonelySeat(t *testing.T) (*seat, []addr.Incarnation) {
	s := newSeat(t)
	var incarnations []addr.Incarnation
	for i := range 12 {
		l := addr.Incarnation{Node: addr.NodeID(10 + i), Generation: 1}
		incarnations = append(incarnations, l)
		s.in(Delta{Term: 5, Version: uint64(11 + i), Entries: []Entry{entry(l)}})
	}
	s.in(RemovedIncarnation{Term: 5, Version: 23, Incarnation: hostIncarnation, Reason: ReasonLeft})
	if !s.m.Alone() || len(s.m.Nodes()) != 13 {
		t.Fatalf("alone %v, knows %d", s.m.Alone(), len(s.m.Nodes()))
	}
	return s, incarnations
}

// TestADoubtIsAReasonToLook: without a host a watcher's doubt has the member look for
// itself, once a second, and only an incarnation that does not answer for as long as a link may be
// silent is over. UUIDs are in the order of the IDs: it is 4, the others 6 and 10 to 21.
func TestADoubtIsAReasonToLook(t *testing.T) {
	s, incarnations := newLonelySeat(t)
	far, watcher, stranger := incarnations[5], incarnations[4], incarnations[11]
	for what, d := range map[string]Doubt{
		"of one that does not watch it": {By: stranger, Incarnation: far},
		"of no node":                    {By: addr.Incarnation{Node: 99, Generation: 1}, Incarnation: far},
		"of itself":                     {By: far, Incarnation: far},
		"about no node":                 {By: watcher, Incarnation: addr.Incarnation{Node: 99, Generation: 1}},
		"about one that it watches":     {By: incarnations[1], Incarnation: incarnations[0]},
	} {
		if out := s.step(d); len(out) != 0 {
			t.Errorf("a doubt %s: %+v", what, out)
		}
	}
	look := func() (p Probe) {
		t.Helper()
		out := s.step(Doubt{By: watcher, Incarnation: far})
		l, ok := did[Look](out)
		p, probes := did[Probe](out)
		if !ok || !probes || l.Incarnation != far || p.Incarnation != far {
			t.Fatalf("a watcher's doubt: %+v, want a look and a probe", out)
		}
		return p
	}
	p := look()
	if out := s.step(Doubt{By: incarnations[6], Incarnation: far}); len(out) != 0 {
		t.Errorf("two looks within a second: %+v", out)
	}
	s.step(Probed{Nonce: p.Nonce, Reached: true})
	s.wantEvents(s.wait(10 * time.Second))

	look()
	began := s.now
	s.wantEvents(s.wait(s.m.t.Silence - time.Millisecond))
	s.wantEvents(s.wait(s.m.t.Check+s.m.t.Tick), EventRemoved)
	if took := s.now.Sub(began); took > 3*time.Second {
		t.Errorf("removed after %v", took)
	}
}
