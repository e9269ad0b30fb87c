package e2e

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A flow is a healthy connection with traffic all the time.
type flow struct {
	stop chan struct{}
	done chan struct{}
	n    int   // round trips; read after done
	err  error // read after done
}

// flow begins traffic between applications at n and m.
func (l *lab) flow(n, m *node) *flow {
	l.t.Helper()
	e := l.pair(n, m)
	f := &flow{stop: make(chan struct{}), done: make(chan struct{})}
	go func() { // until end
		defer close(f.done)
		for ; f.err == nil; f.n++ {
			select {
			case <-f.stop:
				return
			case <-time.After(time.Millisecond):
				f.err = e.trip()
			}
		}
	}()
	return f
}

// end ends the traffic and fails t if anything had disturbed it.
func (f *flow) end(t testing.TB) {
	t.Helper()
	close(f.stop)
	<-f.done
	if f.err != nil || f.n < 5 {
		t.Errorf("a healthy pair: %v after %d round trips", f.err, f.n)
	}
}

// TestKilledNodesAreRemovedOnce kills each of four nodes with SIGKILL, the host
// too, while calls of all kinds are blocked, and starts it again.
func TestKilledNodesAreRemovedOnce(t *testing.T) { overEach(t, (*lab).killEach) }

func (l *lab) killEach() {
	nodes := l.cluster(3)
	for i := len(nodes) - 1; i >= 0; i-- { // the host last
		victim := nodes[i]
		survivors := slices.Delete(slices.Clone(nodes), i, i+1)
		l.loseAndReturn(victim, survivors)
	}
}

// loseAndReturn kills victim and starts it again, with everything checked.
func (l *lab) loseAndReturn(victim *node, survivors []*node) {
	t := l.t
	t.Helper()
	old := victim.incarnation()
	var watchers []*watcher
	var flows []*flow
	for i, s := range survivors {
		watchers = append(watchers, s.watch())
		flows = append(flows, l.flow(s, survivors[(i+1)%len(survivors)]))
	}
	v := l.doomed(victim)
	calls := v.ownCalls(l, survivors[0])
	for _, s := range survivors {
		calls = append(calls, v.callsFrom(l, s)...)
		calls = append(calls, v.sendsWhenRemoved(l, s))
	}
	calls = append(calls, v.own...)
	victim.stop(t) // so that calls that need the victim block
	for _, block := range v.later {
		calls = append(calls, block())
	}
	time.Sleep(50 * time.Millisecond) // there is no sign that a call blocks
	for _, c := range calls {
		c.blocked(t)
	}

	killed := victim.kill()
	slowest := map[string]time.Duration{}
	for _, c := range calls {
		slowest[c.name] = max(slowest[c.name], c.check(t, killed, promptly))
	}
	var reported []time.Duration
	for _, w := range watchers {
		ev := w.removed(promptly, old)
		reported = append(reported, ev.at.Sub(killed).Round(10*time.Microsecond))
		if ev.Reason != "crashed" {
			t.Errorf("%s: reason %q, want crashed", w.name, ev.Reason)
		}
	}
	t.Logf("%s killed: NODE_REMOVED after %v; calls returned after at most %v", victim.name, reported, slowest)
	v.check(t)
	for _, s := range survivors {
		_, err := s.attach().DialAddr(within(t, stepLimit), victim.at(v.port))
		if !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s: connect to the lost node: %v, want ENODEV", s.name, err)
		}
	}

	victim.start()
	next := victim.incarnation() // a host's is above its age, and so are incarnations that it grants then
	if next.Node != old.Node || next.Generation <= old.Generation {
		t.Errorf("%s is %v again, want an incarnation after %v", victim.name, next, old)
	}
	for _, w := range watchers {
		w.added(stepLimit, next)
	}
	l.agree(append(survivors, victim)...)
	for _, s := range survivors {
		l.pair(s, victim).pace(t.(*testing.T), 3)
	}
	for _, f := range flows {
		f.end(t)
	}
	for _, w := range watchers {
		w.saw(fmt.Sprintf("%v removed, %v added", old, next))
	}
}
