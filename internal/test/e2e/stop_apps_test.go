package e2e

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// promptly is how long a call may take that does not depend on a stopped
// process, on a machine that is busy with other tests.
const promptly = 5 * time.Second

// TestStoppedTargetStillTakesWritesAndFences stops an application, not its
// node: the peer's operations on its memory do not need it.
func TestStoppedTargetStillTakesWritesAndFences(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	l.writeToStopped(nodes[0], nodes[1])
	l.writeToStopped(nodes[1], nodes[1])
}

// writeToStopped writes from n to an application of m that is stopped.
func (l *lab) writeToStopped(n, m *node) {
	t := l.t
	t.Helper()
	app := l.application("target-of-"+n.name, "target", m.socket())
	conn, err := n.attach().DialAddr(within(t, stepLimit), m.at(app.port(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ep := conn.Endpoint()
	off, err := peerWindow(within(t, stepLimit), ep)
	if err != nil {
		t.Fatal(err)
	}
	app.expect(t, stepLimit, "ready")
	app.stop(t)

	began := time.Now()
	data := pattern('w', wordOffset)
	if err := ep.VWriteTo(data, off, fabric.Sync); err != nil {
		t.Errorf("write with SYNC: %v", err)
	}
	mark, err := ep.FenceMark(fabric.InitSelf)
	if err == nil {
		err = ep.FenceWait(within(t, promptly), mark)
	}
	if err != nil {
		t.Errorf("fence wait: %v", err)
	}
	err = ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: off + wordOffset, RemoteValue: 0xfeed})
	if err != nil {
		t.Errorf("fence signal: %v", err)
	}
	got := make([]byte, windowSize)
	if err := ep.VReadFrom(got, off, fabric.Sync); err != nil || !bytes.Equal(got[:wordOffset], data) {
		t.Errorf("read back: %v, the data equal: %v", err, bytes.Equal(got[:wordOffset], data))
	}
	if old, err := ep.FetchAdd64(within(t, promptly), off+wordOffset, 1); err != nil || old != 0xfeed {
		t.Errorf("atomic: found %#x, %v, want the signal's %#x", old, err, 0xfeed)
	}
	took := time.Since(began)
	if s := stateOf(app.pid()); s != "T" || took > promptly {
		t.Errorf("it took %v, and the target is in state %q, want T", took, s)
	}
	t.Logf("from %s: write, fence wait, signal, read and atomic into a stopped application: %v", n.name, took.Round(10*time.Microsecond))

	app.cont(t)
	app.say(t, "check")
	app.expect(t, stepLimit, "holds 0xfeee")
}

// TestStoppedReceiverBlocksOnlyItsOwnConnection fills the connection to an
// application that is stopped, while another one between the same nodes works.
func TestStoppedReceiverBlocksOnlyItsOwnConnection(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	app := l.application("sink", "sink", nodes[1].socket())
	sender := nodes[0].attach()
	conn, err := sender.DialAddr(within(t, stepLimit), nodes[1].at(app.port(t)))
	if err != nil {
		t.Fatal(err)
	}
	app.expect(t, stepLimit, "accepted")
	echo := l.pair(nodes[0], nodes[1])
	free := echo.pace(t, 300)
	app.stop(t)

	before := resident(t, nodes[0].pid()) + resident(t, nodes[1].pid())
	sent, sum := fill(t, sender, conn)
	grown := resident(t, nodes[0].pid()) + resident(t, nodes[1].pid()) - before
	// Two sockets, a ring at each end and the link's credit: no more than a few
	// MiB. The bound leaves room for the runtime's own memory.
	if sent < 64<<10 || sent > 16<<20 || grown > 48<<20 {
		t.Errorf("the stopped receiver was sent %d bytes, the nodes grew by %d; want 64 KiB to 16 MiB, and 48 MiB at most", sent, grown)
	}
	busy := echo.pace(t, 300)
	t.Logf("sent %d KiB into a stopped application, both nodes grew by %d KiB; round trip beside it: median %v, without it %v",
		sent>>10, grown>>10, busy, free)
	if busy > 10*free+5*time.Millisecond {
		t.Errorf("a round trip beside the blocked connection takes %v, without it %v", busy, free)
	}

	app.cont(t)
	app.say(t, "read")
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if got, want := app.expect(t, stepLimit, "received"), fmt.Sprintf("%d %d", sent, sum); got != want {
		t.Errorf("the application received (bytes, sum) %s, want %s", got, want)
	}
}

// fill sends until nothing fits any more for a while, and returns how much that
// was and its checksum, as sink computes it.
func fill(t *testing.T, n *fabric.Node, conn *fabric.Conn) (sent int64, sum uint32) {
	t.Helper()
	block := pattern('k', 60<<10)
	items := []fabric.PollItem{{Endpoint: conn.Endpoint(), Events: fabric.PollOut}}
	for {
		m, err := conn.Endpoint().TrySend(block)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range block[:m] {
			sum = sum*31 + uint32(c)
		}
		sent += int64(m)
		if m > 0 {
			continue
		}
		if _, err := n.Poll(within(t, 300*time.Millisecond), items); err != nil {
			return sent, sum // no room, and none comes
		}
	}
}

// An echo is a connection whose other end sends everything back.
type echo struct {
	conn *fabric.Conn
	errs chan error // of the other end, one
}

// pair connects two applications, at n and m, of which the second one echoes
// until the first closes.
func (l *lab) pair(n, m *node) *echo {
	l.t.Helper()
	listener, err := m.attach().Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	e := &echo{errs: make(chan error, 1)}
	go func() { // ends with the connection or the listener, which end with the test
		c, err := listener.AcceptConn(within(l.t, stepLimit))
		if err == nil {
			_, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}
		e.errs <- err
	}()
	e.conn, err = n.attach().DialAddr(within(l.t, stepLimit), listener.Addr().(fabric.Addr))
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

// trip sends one message there and back.
func (e *echo) trip() error {
	var b [16]byte
	if err := e.conn.SetDeadline(time.Now().Add(stepLimit)); err != nil {
		return err
	}
	if _, err := e.conn.Write(b[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(e.conn, b[:])
	return err
}

// pace returns the median of n round trips.
func (e *echo) pace(t *testing.T, n int) time.Duration {
	t.Helper()
	all := make([]time.Duration, n)
	for i := range all {
		began := time.Now()
		if err := e.trip(); err != nil {
			t.Fatalf("round trip %d: %v", i, err)
		}
		all[i] = time.Since(began)
	}
	slices.Sort(all)
	return all[n/2]
}
