package verdict

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestEveryLifeHasItsWatchers: in a cluster of any size each life but the host's has
// eight watchers, or all the others, and watches them.
func TestEveryLifeHasItsWatchers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 8, 9, 10, 11, 63, 64, 65, 200} {
		all := []Node{{Life: hostLife}}
		for i := range n {
			x := Node{Life: addr.Life{Node: addr.NodeID(i + 1), Generation: 1}}
			for b := range x.UUID {
				x.UUID[b] = byte(rng.Uint32())
			}
			all = append(all, x)
		}
		watched := make(map[addr.Life]map[addr.Life]bool, n)
		for i, x := range all[1:] {
			others := append(append([]Node(nil), all[:i+1]...), all[i+2:]...)
			watched[x.Life] = Watched(x.UUID, others)
			if len(watched[x.Life]) != min(8, n-1) || watched[x.Life][hostLife] || watched[x.Life][x.Life] {
				t.Fatalf("%d lives: %v watches %v", n, x.Life, watched[x.Life])
			}
		}
		for a, list := range watched {
			for b := range list {
				if !watched[b][a] {
					t.Errorf("%d lives: %v watches %v, and is not watched by it", n, a, b)
				}
			}
		}
	}
}

// newLonelySeat returns a member without a host, among twelve others.
func newLonelySeat(t *testing.T) (*seat, []addr.Life) {
	s := newSeat(t)
	var lives []addr.Life
	for i := range 12 {
		l := addr.Life{Node: addr.NodeID(10 + i), Generation: 1}
		lives = append(lives, l)
		s.in(Delta{Term: 5, Version: uint64(11 + i), Entries: []Entry{entry(l)}})
	}
	s.in(RemovedLife{Term: 5, Version: 23, Life: hostLife, Reason: ReasonLeft})
	if !s.m.Alone() || len(s.m.Nodes()) != 13 {
		t.Fatalf("alone %v, knows %d", s.m.Alone(), len(s.m.Nodes()))
	}
	return s, lives
}

// TestADoubtIsAReasonToLook: without a host a watcher's doubt has the member look for
// itself, once a second, and only a life that does not answer for as long as a link may be
// silent is over. UUIDs are in the order of the IDs: it is 4, the others 6 and 10 to 21.
func TestADoubtIsAReasonToLook(t *testing.T) {
	s, lives := newLonelySeat(t)
	far, watcher, stranger := lives[5], lives[4], lives[11]
	for what, d := range map[string]Doubt{
		"of one that does not watch it": {By: stranger, Life: far},
		"of nobody":                     {By: addr.Life{Node: 99, Generation: 1}, Life: far},
		"of itself":                     {By: far, Life: far},
		"about nobody":                  {By: watcher, Life: addr.Life{Node: 99, Generation: 1}},
		"about one that it watches":     {By: lives[1], Life: lives[0]},
	} {
		if out := s.step(d); len(out) != 0 {
			t.Errorf("a doubt %s: %+v", what, out)
		}
	}
	look := func() (p Probe) {
		t.Helper()
		out := s.step(Doubt{By: watcher, Life: far})
		l, ok := did[Look](out)
		p, probes := did[Probe](out)
		if !ok || !probes || l.Life != far || p.Life != far {
			t.Fatalf("a watcher's doubt: %+v, want a look and a probe", out)
		}
		return p
	}
	p := look()
	if out := s.step(Doubt{By: lives[6], Life: far}); len(out) != 0 {
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
