package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestShortPauseOfANodeIsInvisible stops a fabricd for a second.
func TestShortPauseOfANodeIsInvisible(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2)
	paused := nodes[2]
	var watchers []*watcher
	for _, n := range nodes {
		watchers = append(watchers, n.watch())
	}
	out, in := l.pair(nodes[0], paused), l.pair(paused, nodes[1])
	for _, e := range []*echo{out, in} {
		e.pace(t, 10)
	}
	healthy := l.flow(nodes[0], nodes[1])

	paused.stop(t)
	began := time.Now()
	waiting := make(chan error, 2)
	for _, e := range []*echo{out, in} {
		go func() { waiting <- e.trip() }()
	}
	time.Sleep(time.Second - time.Since(began)) // the pause itself
	paused.cont(t)
	for range 2 {
		if err := <-waiting; err != nil {
			t.Errorf("a round trip over the pause: %v", err)
		}
	}
	// A removal would come within the bounds of `detection: fast`, 2 s after
	// the last sign of life.
	for end := began.Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, e := range []*echo{out, in} {
			e.pace(t, 1)
		}
	}
	healthy.end(t)
	for _, w := range watchers {
		w.saw("")
	}
	l.agree(nodes...)
}

// TestLongPauseOfANodeIsOneRemovalAndOneReturn stops a fabricd for 5 s, while
// its application goes on and writes into a window elsewhere.
func TestLongPauseOfANodeIsOneRemovalAndOneReturn(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2)
	paused := nodes[2]
	old := paused.incarnation()
	var watchers []*watcher
	for _, n := range nodes[:2] {
		watchers = append(watchers, n.watch())
	}
	own := paused.watch()
	healthy := l.flow(nodes[0], nodes[1])
	z := l.zombie(paused, nodes[0])

	paused.stop(t)
	began := time.Now()
	writes := start("write of the removed incarnation", z.write(pattern('o', windowSize)), syscall.ECONNRESET)
	for _, w := range watchers {
		ev := w.removed(10*time.Second, old)
		t.Logf("%s: NODE_REMOVED %v after SIGSTOP: %s", w.name, ev.at.Sub(began).Round(time.Millisecond), ev.Reason)
		if limit := 4 * time.Second; ev.at.Sub(began) > limit {
			t.Errorf("%s: NODE_REMOVED %v after SIGSTOP, want %v at most", w.name, ev.at.Sub(began), limit)
		}
	}
	z.reuse(t)
	time.Sleep(5*time.Second - time.Since(began)) // the pause itself
	paused.cont(t)
	resumed := time.Now()

	next := fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}
	for _, w := range watchers {
		ev := w.added(stepLimit, next)
		t.Logf("%s: back as %v %v after SIGCONT", w.name, next, ev.at.Sub(resumed).Round(time.Millisecond))
	}
	writes.check(t, resumed, promptly)
	paused.joined()
	l.agree(nodes...)
	if paused.incarnation() != next {
		t.Errorf("it is back as %v, want %v", paused.incarnation(), next)
	}
	z.untouched(t)
	l.pair(paused, nodes[0]).pace(t, 3)
	l.pair(nodes[1], paused).pace(t, 3)
	healthy.end(t)
	for _, w := range watchers {
		w.saw(fmt.Sprintf("%v removed, %v added", old, next))
	}
	for _, n := range nodes[:2] {
		if strings.Contains(own.words(), n.incarnation().String()+" removed") {
			t.Errorf("the node that stood still removed a healthy one: %s", own.words())
		}
	}
}

// A zombie is an application whose node stands still, connected to a window.
type zombie struct {
	ep     *fabric.Endpoint // the zombie's
	off    int64            // of the window
	far    *fabric.Endpoint
	window *fabric.Memory // far's
}

// zombie connects an application at n to a window at m and writes to it once.
func (l *lab) zombie(n, m *node) *zombie {
	t := l.t
	t.Helper()
	owner := m.attach()
	listener, err := owner.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	dialed := make(chan error, 1)
	var conn *fabric.Conn
	go func() { // one answer
		var err error
		conn, err = n.attach().DialAddr(within(t, stepLimit), listener.Addr().(fabric.Addr))
		dialed <- err
	}()
	far, err := listener.AcceptConn(within(t, stepLimit))
	if err := errors.Join(err, <-dialed); err != nil {
		t.Fatal(err)
	}
	z := &zombie{ep: conn.Endpoint(), far: far.Endpoint()}
	if z.window, _, err = openWindow(within(t, stepLimit), owner, z.far); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.window.Close() })
	if z.off, err = peerWindow(within(t, stepLimit), z.ep); err != nil {
		t.Fatal(err)
	}
	if err := z.ep.VWriteTo(pattern('z', windowSize), z.off, fabric.Sync); err != nil {
		t.Fatal(err)
	}
	return z
}

// write returns a function that writes p into the window until that fails.
func (z *zombie) write(p []byte) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := z.ep.VWriteTo(p, z.off, 0); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

// reuse gives the window's memory another content: its owner knows that the
// zombie's node was removed.
func (z *zombie) reuse(t testing.TB) {
	t.Helper()
	if _, err := z.far.Recv(within(t, promptly), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the window's owner receives %v, want ECONNRESET", err)
	}
	copy(z.window.Bytes(), pattern('n', windowSize))
}

// untouched fails t if anything has changed since reuse.
func (z *zombie) untouched(t testing.TB) {
	t.Helper()
	if !bytes.Equal(z.window.Bytes(), pattern('n', windowSize)) {
		t.Error("a write of the removed incarnation landed after the removal")
	}
}
