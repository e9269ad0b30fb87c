package e2e

import (
	"testing"
	"time"
)

// idleShare bounds the part of a processor that an idle process takes. It
// finds busy loops; the benchmark has the figure itself, which
// is 0.5 % for a node.
const idleShare = 0.02

// TestIdleProcessesRest watches four nodes with applications that are connected, to
// the other nodes and within their own, and have nothing to say.
func TestIdleProcessesRest(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(3, "--detection", "normal")
	idle := map[string]*process{}
	for i, n := range nodes {
		l.pair(n, nodes[(i+1)%len(nodes)]).pace(t, 20)
		idle[n.name], idle["application at "+n.name] = n.process, l.waiting(n).process
	}
	time.Sleep(time.Second) // for the work that the start has set off

	before := map[string]time.Duration{}
	for name, p := range idle {
		before[name] = cpu(t, p.pid())
	}
	began := time.Now()
	time.Sleep(5 * time.Second) // a bound of ten ticks of the kernel's clock
	for name, p := range idle {
		share := float64(cpu(t, p.pid())-before[name]) / float64(time.Since(began))
		t.Logf("%s: %.1f%% of a processor", name, 100*share)
		if share > idleShare {
			t.Errorf("%s takes %.1f%% of a processor with nothing to do, want %.0f%% at most", name, 100*share, 100*idleShare)
		}
	}
}

// waiting starts an application at n that waits to receive, behind some messages from
// another one there.
func (l *lab) waiting(n *node) *application {
	t := l.t
	t.Helper()
	app := l.application("idle-at-"+n.name, "sink", n.socket())
	conn, err := n.attach().DialAddr(within(t, stepLimit), n.at(app.port(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	app.expect(t, stepLimit, "accepted")
	app.say(t, "read")
	for range 100 { // enough for a shared-memory path
		if _, err := conn.Write(pattern('i', 64)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	return app
}
