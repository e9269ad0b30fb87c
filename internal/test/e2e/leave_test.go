package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestTerminatedNodesLeave ends a node, and then the host, with SIGTERM while
// bytes of their applications are on their way.
func TestTerminatedNodesLeave(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(3)
	l.terminate(nodes[3], nodes[:3])
	l.terminate(nodes[0], nodes[1:3])
}

// terminate ends leaver with SIGTERM and checks the events of the others.
func (l *lab) terminate(leaver *node, others []*node) {
	t := l.t
	t.Helper()
	incarnation := leaver.incarnation()
	data := bytes.Repeat(pattern('t', 64<<10), 16)
	app := leaver.attach()
	var watchers []*watcher
	var got []chan error
	for _, n := range others {
		watchers = append(watchers, n.watch())
		listener, err := n.attach().Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		got = append(got, result)
		go func() { result <- receive(t, listener, data) }() // one answer
		conn, err := app.DialAddr(within(t, stepLimit), listener.Addr().(fabric.Addr))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
	}

	began := time.Now()
	leaver.signal(t, syscall.SIGTERM)
	if code := leaver.exit(t, stepLimit); code != 0 {
		t.Errorf("%s: exit code %d, want 0; it said:\n%s", leaver.name, code, tail(leaver.log, 2))
	}
	took := leaver.process.at.Sub(began)
	if took > 2*time.Second {
		t.Errorf("%s ended %v after SIGTERM, want 2s at most", leaver.name, took)
	}
	for i, result := range got {
		if err := <-result; err != nil {
			t.Errorf("sent to %s before SIGTERM: %v", others[i].name, err)
		}
	}
	for _, w := range watchers {
		ev := w.removed(promptly, incarnation)
		after := ev.at.Sub(began).Round(time.Millisecond)
		if ev.Reason != "left" || after > time.Second {
			t.Errorf("%s: %v removed with reason %q after %v, want left within 1s", w.name, incarnation, ev.Reason, after)
		}
		t.Logf("%s: SIGTERM to %s: NODE_REMOVED (%s) after %v; it ended after %v", w.name, leaver.name, ev.Reason, after, took.Round(time.Millisecond))
		w.saw(fmt.Sprintf("%v removed", incarnation))
	}
	select {
	case <-app.Done():
	case <-time.After(promptly):
		t.Errorf("the application at %s is not notified that its node left", leaver.name)
	}
}

// receive accepts one connection and fails unless exactly want arrives on it
// before its end.
func receive(t testing.TB, listener *fabric.Listener, want []byte) error {
	conn, err := listener.AcceptConn(within(t, stepLimit))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * stepLimit)); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("after %d bytes: %w", len(got), err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d of %d bytes arrived, then %v", len(got), len(want), err)
	}
	return nil
}
