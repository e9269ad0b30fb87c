package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// An ended is a connection from application a to b, which streams to it.
type ended struct {
	fab  *fabric
	j    int // b's node
	a, b attach.NodeEndpoint
	bs   attach.NodeSession
}

// TestOnlyTheApplicationsCloseIsAnEnd lets a writer's connection end in every way, and
// checks the result of its reader's call behind the last byte, and of every other call.
func TestOnlyTheApplicationsCloseIsAnEnd(t *testing.T) {
	stopped := func(e *ended) string { return attach.CauseStopped(addr.NodeID(e.j)) }
	for name, c := range map[string]struct {
		end    func(e *ended)
		cause  func(e *ended) string // nil: a good end
		across bool                  // only between two nodes
		whole  bool                  // all that was sent arrives
	}{
		"its application closes":                {end: func(e *ended) { e.b.Close() }, whole: true},
		"its application closes, and then ends": {end: func(e *ended) { e.b.Close(); e.bs.Close() }, whole: true},
		"its session ends": {end: func(e *ended) { e.bs.Close() }, whole: true,
			cause: func(*ended) string { return attach.CauseDetached }},
		"its application dies": {end: func(e *ended) { e.b.Abort(attach.CauseDied) }, whole: true,
			cause: func(*ended) string { return attach.CauseDied }},
		"its node leaves":    {end: func(e *ended) { e.fab.nodes[e.j].Leave(context.Background()) }, whole: true, across: true, cause: stopped},
		"its node is closed": {end: func(e *ended) { e.fab.nodes[e.j].Close() }, across: true, cause: stopped},
		"its node is removed": {end: func(e *ended) { e.fab.nodes[0].NodeLost(addr.Incarnation{Node: 1, Generation: 1}, "crashed") }, across: true,
			cause: func(*ended) string { return "node removed: crashed" }},
		"its node begins a new incarnation": {end: func(e *ended) {
			self := e.fab.nodes[1].Self()
			self.Incarnation.Generation++
			e.fab.nodes[1].SetSelf(self)
		}, across: true, cause: func(*ended) string { return "this node has a new incarnation" }},
		"its way is cut": {end: func(e *ended) { e.fab.hub.Cut("node0.1", "node1.1") }, across: true,
			cause: func(*ended) string { return "silent" }},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, fab *fabric, j int) {
				if c.across && j == 0 {
					return
				}
				e := &ended{fab: fab, j: j, bs: fab.nodes[j].NewSession(attach.Credentials{Admin: true})}
				var err error
				if e.b, e.a, err = fab.joinFrom(e.bs, 0); err != nil {
					t.Fatal(err)
				}
				want := bytes.Repeat([]byte("0123456789"), 1000)
				if n, err := e.b.Send(context.Background(), want); n != len(want) || err != nil {
					t.Fatalf("Send = %d, %v", n, err)
				}
				go c.end(e)
				synctest.Wait()
				got, err := io.ReadAll(endReader{e.a})
				if c.whole && !bytes.Equal(got, want) || !bytes.HasPrefix(want, got) {
					t.Errorf("read %d bytes of %d", len(got), len(want))
				}
				if c.cause == nil {
					if !errors.Is(err, attach.ErrPeerClosed) || e.a.Cause() != "" {
						t.Errorf("ended with %v, cause %q; want a good end", err, e.a.Cause())
					}
					return
				}
				e.wantLost(t, c.cause(e), err)
			})
		})
	}
}

// wantLost checks that err, and the error of each call, is a loss for that cause.
func (e *ended) wantLost(t *testing.T, cause string, err error) {
	t.Helper()
	_, sendErr := e.a.Send(context.Background(), []byte("x"))
	_, rmaErr := e.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8})
	for call, err := range map[string]error{"recv": err, "send": sendErr, "atomic": rmaErr} {
		if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), cause) {
			t.Errorf("%s: %v; want a reset because %q", call, err, cause)
		}
	}
	if got := e.a.Cause(); !strings.Contains(got, cause) {
		t.Errorf("cause %q, want %q", got, cause)
	}
}

// An endReader reads an endpoint as io.Reader; only a good end is io.EOF.
type endReader struct{ attach.NodeEndpoint }

func (r endReader) Read(p []byte) (int, error) {
	n, err := r.Recv(context.Background(), p)
	if errors.Is(err, attach.ErrPeerClosed) {
		err = goodEnd{err}
	}
	return n, err
}

// goodEnd keeps io.ReadAll from taking the end for success.
type goodEnd struct{ error }

func (g goodEnd) Unwrap() error { return g.error }

// TestAConnectionThatNobodyAcceptedIsReset closes a listener in the moment in which
// its requester has confirmed the grant.
func TestAConnectionThatNobodyAcceptedIsReset(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 1)
		a := fab.open(0)
		connected := make(chan error, 1)
		go func() {
			_, err := a.Connect(context.Background(), at)
			connected <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		accepted := make(chan attach.NodeEndpoint, 1)
		go func() {
			e, _, _ := l.Accept(ctx)
			accepted <- e
		}()
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
		cancel()
		l.Close()
		if e := <-accepted; e != nil { // it was faster
			e.Abort("not wanted")
		}
		if _, err := a.Recv(context.Background(), make([]byte, 1)); errors.Is(err, io.EOF) {
			t.Errorf("an empty stream that ends well: %v", err)
		}
	})
}

// TestAnAbortIsNoGoodEndToAnOlderPeer: version 2 has no reset in its Close.
func TestAnAbortIsNoGoodEndToAnOlderPeer(t *testing.T) {
	for version, said := range map[uint16]bool{2: false, 3: true} {
		bubble.Test(t, func(t *testing.T) {
			h := newHostileOf(t, 1000, version)
			go h.victim.Abort("tired")
			var frames []wire.Type
			var f wire.Close
			for {
				hd, body, err := h.opsIn.Next()
				if err != nil {
					break
				}
				if frames = append(frames, hd.Type); hd.Type == wire.TypeClose {
					f, _ = wire.ParseClose(hd.Flags, body)
					h.sendFrame(wire.Close{}.AppendTo(nil))
				}
			}
			if f.Reset != said || said && f.Cause != "tired" || !said && len(frames) > 0 {
				t.Errorf("version %d: frames %v, %+v", version, frames, f)
			}
		})
	}
}

// TestACauseFromThePeerIsOnePrintableLine however long it is.
func TestACauseFromThePeerIsOnePrintableLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHostile(t, 1000)
		h.sendFrame(wire.Close{Reset: true, Cause: "\x1b[2J\r\nroot# " + strings.Repeat("ä", 120)}.AppendTo(nil))
		h.wantReset(false)
		cause := h.victim.Cause()
		if strings.ContainsAny(cause, "\x1b\r\n") || !strings.Contains(cause, "root#") || len(cause) > attach.MaxCause {
			t.Errorf("cause %q", cause)
		}
		if _, err := h.victim.TryRecv(make([]byte, 1)); !strings.Contains(err.Error(), "root#") || errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	})
}
