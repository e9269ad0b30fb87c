package membership

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestLossReportsHaveToBeProved has a node report that it receives nothing from the host: the host
// believes a report that the node's session proves, once, and no other. As it reaches
// the node, no node is removed.
func TestLossReportsHaveToBeProved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		host, liar, n := w.node(1).a, w.node(3).a, w.node(2).a
		began := time.Now()
		to := gossip.Key{UUID: host.self.UUID, Epoch: host.self.Epoch}
		say := func(by *Agent, secret []byte, number uint64) {
			t.Helper()
			if err := by.gossip.SendLossReport(to, secret, number); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		believed := func() (last uint64) {
			onLoop(host, func() {
				for _, k := range host.sessions.lossReports {
					last += k
				}
			})
			return last
		}
		secretOf := func(a *Agent) (secret []byte) {
			onLoop(a, func() {
				for _, s := range a.sessions.open {
					secret, _ = s.Secret(lossReportPurpose)
				}
			})
			return secret
		}
		for _, c := range []struct {
			what   string
			by     *Agent
			secret []byte
			number uint64
			want   uint64
		}{
			{"without a secret", n, nil, 5, 0},
			{"with another node's", liar, secretOf(n), 5, 0},
			{"of no number", n, secretOf(n), 0, 0},
			{"its own", n, secretOf(n), 5, 5},
			{"an old one", n, secretOf(n), 4, 5},
			{"the next", n, secretOf(n), 6, 6},
		} {
			if say(c.by, c.secret, c.number); believed() != c.want {
				t.Errorf("%s: the host has believed up to number %d, want %d", c.what, believed(), c.want)
			}
		}
		onLoop(n, func() { n.perform(verdict.SendLossReport{Session: 99}, false) }) // a session that has ended
		time.Sleep(5 * time.Second)
		for _, m := range w.all {
			if got := removals(m.since(began)); len(got) > 0 {
				t.Errorf("node %d: %v, want no node removed", m.i, got)
			}
		}
		w.kill(w.node(2))
		w.within(5*time.Second, "the host forgets the sessions of the dead", func() bool { return believed() == 0 })
	})
}

// onLoop runs f on the agent's loop.
func onLoop(a *Agent, f func()) {
	done := make(chan struct{})
	a.post(func() {
		defer close(done)
		f()
	})
	<-done
}
