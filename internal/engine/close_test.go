package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/rma"
)

// TestSessionsOfAClosedNodeHaveEnded begins one when the node has been closed:
// nothing would end it, nor the calls that wait in it.
func TestSessionsOfAClosedNodeHaveEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newFabric(t, 1).nodes[0]
		n.Close()
		s := n.NewSession(attach.Credentials{})
		select {
		case <-s.Done():
		default:
			t.Error("it lives")
		}
		if _, err := s.Open(); !errors.Is(err, status.BadFD) {
			t.Errorf("it opens endpoints: %v", err)
		}
		s.Watch(func(attach.Event) { t.Error("it sends events") })()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseWakesBlockedCalls blocks each call on a path that is cut, so that
// the peer cannot help, and closes the endpoint.
func TestCloseWakesBlockedCalls(t *testing.T) {
	ctx := context.Background()
	for name, block := range map[string]func(f *fabric, a attach.NodeEndpoint, off int64) error{
		"Recv": func(_ *fabric, a attach.NodeEndpoint, _ int64) error {
			_, err := a.Recv(ctx, make([]byte, 1))
			return err
		},
		"Send": func(_ *fabric, a attach.NodeEndpoint, _ int64) error {
			_, err := a.Send(ctx, make([]byte, 4<<20))
			return err
		},
		"Register": func(f *fabric, a attach.NodeEndpoint, _ int64) error {
			_, err := register(a, alloc(f.t, 4096), 0, rma.ProtRead, 0)
			return err
		},
		"Unregister": func(_ *fabric, a attach.NodeEndpoint, off int64) error { return a.Unregister(off, 4096) },
		"WriteTo":    func(_ *fabric, a attach.NodeEndpoint, off int64) error { return a.WriteTo(off, 4096, off, rma.Sync) },
		"ReadFrom":   func(_ *fabric, a attach.NodeEndpoint, off int64) error { return a.ReadFrom(off, 4096, off, rma.Sync) },
		"Atomic": func(_ *fabric, a attach.NodeEndpoint, off int64) error {
			_, err := a.Atomic(ctx, rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: off})
			return err
		},
		"PostAtomic": func(_ *fabric, a attach.NodeEndpoint, off int64) error {
			for { // until there is no room
				if err := a.PostAtomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: off}); err != nil {
					return err
				}
			}
		},
		"VPutSignal": func(_ *fabric, a attach.NodeEndpoint, off int64) error {
			for {
				if err := a.VPutSignal(make([]byte, 8), rma.Put{Offset: off, Word: off + 8}); err != nil {
					return err
				}
			}
		},
		"FenceMark": func(_ *fabric, a attach.NodeEndpoint, _ int64) error {
			_, err := a.FenceMark(fence.InitPeer)
			return err
		},
		"FenceWait": func(_ *fabric, a attach.NodeEndpoint, off int64) error {
			a.WriteTo(off, 4096, off, 0)
			return fenced(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				fab := newFabric(t, 2)
				a, b := fab.pair(0, 1)
				off, err := register(a, alloc(t, 4096), 0, rma.ProtRead|rma.ProtWrite, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := register(b, alloc(t, 4096), 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
					t.Fatal(err)
				}
				fab.hub.Cut("node0.1", "node1.1")
				ended := make(chan error, 1)
				go func() { ended <- block(fab, a, off) }()
				synctest.Wait()
				if len(ended) > 0 {
					t.Fatalf("did not block: %v", <-ended)
				}
				begun := time.Now()
				go a.Close()
				if err := <-ended; !errors.Is(err, syscall.ECONNRESET) || time.Since(begun) > 0 {
					t.Errorf("%v, %v after the close", err, time.Since(begun))
				}
			})
		})
	}
}

func TestCloseWakesAConnectThatDials(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		fab.hub.Cut("node0.1", "node1.1")
		a := fab.open(0)
		ended := make(chan error, 1)
		go func() {
			_, err := a.Connect(context.Background(), addr.Addr{Node: 1, Port: 2000})
			ended <- err
		}()
		synctest.Wait()
		begun := time.Now()
		a.Close()
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) || time.Since(begun) > 0 {
			t.Errorf("%v, %v after the close", err, time.Since(begun))
		}
	})
}

// cutRequest returns a listener with a waiting request; its requester does
// not get the grant.
func cutRequest(t *testing.T, fab *fabric) attach.NodeEndpoint {
	l, at := fab.listener(1, 1)
	go fab.open(0).Connect(context.Background(), at)
	synctest.Wait()
	fab.hub.Cut("node0.1", "node1.1")
	return l
}

func TestAcceptGivesUpOnASilentRequester(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		l := cutRequest(t, fab)
		begun := time.Now()
		if _, _, err := l.TryAccept(); !errors.Is(err, syscall.EAGAIN) || time.Since(begun) > 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		l.Close()
		synctest.Wait()
		if p := fab.nodes[1].Ports(); len(p) != 0 {
			t.Errorf("ports are left: %+v", p)
		}
	})
}

func TestListenerCloseWakesAnAcceptThatGrants(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		l := cutRequest(t, fab)
		ended := make(chan error, 1)
		go func() {
			_, _, err := l.Accept(context.Background())
			ended <- err
		}()
		synctest.Wait()
		begun := time.Now()
		l.Close()
		if err := <-ended; !errors.Is(err, syscall.EINTR) || time.Since(begun) > 0 {
			t.Errorf("%v, %v after the close", err, time.Since(begun))
		}
		synctest.Wait()
		if p := fab.nodes[1].Ports(); len(p) != 0 {
			t.Errorf("ports are left: %+v", p)
		}
	})
}

func TestSessionCloseWaitsForEndpointsThatClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		l, at := fab.listener(1, 1)
		go l.Accept(context.Background())
		s := fab.nodes[0].NewSession(attach.Credentials{})
		a, err := s.Open()
		if err == nil {
			_, err = a.Connect(context.Background(), at)
		}
		if err != nil {
			t.Fatal(err)
		}
		fab.hub.Cut("node0.1", "node1.1")
		go a.Close()
		synctest.Wait() // it waits for the peer, until the link is given up
		s.Close()
		if c, p := fab.nodes[0].Conns(), fab.nodes[0].Ports(); len(c)+len(p) != 0 {
			t.Errorf("left after the session: %+v %+v", c, p)
		}
	})
}

// TestRegisterOnALostConnectionKeepsNoMemory is about the reference that a
// window holds.
func TestRegisterOnALostConnectionKeepsNoMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		a, _ := fab.pair(0, 1)
		r := newCountedRegion(t, 0)
		fab.hub.Cut("node0.1", "node1.1")
		for _, close := range []bool{false, true} {
			ended := make(chan error, 1)
			go func() {
				_, err := a.RegisterRegion(r, 0, regionLen, 0, rma.ProtRead, 0)
				ended <- err
			}()
			if close {
				a.Close()
			} else {
				fab.nodes[0].NodeLost(addr.Incarnation{Node: 1, Generation: 1}, "test")
			}
			if err := <-ended; err == nil {
				t.Error("registered on a connection that is lost")
			}
		}
		synctest.Wait()
		if k := r.refs.Load(); k != 0 {
			t.Errorf("%d references to the memory are left", k)
		}
	})
}

func TestNodeLostReturnsAfterTheCallThatBeganIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 3)
		s := fab.nodes[0].NewSession(attach.Credentials{})
		var events []attach.Event
		s.Watch(func(ev attach.Event) { events = append(events, ev) })
		incarnation := addr.Incarnation{Node: 1, Generation: 1}
		for range 3 {
			go fab.nodes[0].NodeLost(incarnation, "test")
		}
		next := fab.peers[1]
		next.Incarnation.Generation = 2
		go fab.nodes[0].NodeUp(next)
		go fab.nodes[0].NodeUp(next)
		synctest.Wait()
		if len(events) != 2 || events[0].Kind != attach.NodeRemoved || events[0].Incarnation != incarnation ||
			events[1].Kind != attach.NodeAdded || events[1].Incarnation != next.Incarnation {
			t.Errorf("events %+v, want one removal and one addition", events)
		}
	})
}

func TestAcceptTakesAWaitingRequestThoughItsContextIsDone(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 1)
		connected := make(chan error, 1)
		go func() {
			_, err := fab.open(0).Connect(context.Background(), at)
			connected <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, _, err := l.Accept(ctx); err != nil {
			t.Errorf("accept: %v", err)
		}
		if err := <-connected; err != nil {
			t.Errorf("connect: %v", err)
		}
		if _, _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("accept without a request: %v", err)
		}
	})
}

// TestCloseWaitsForOperations: operations that an end has begun before it closes are done
// when it is closed, also those that wait for a read.
func TestCloseWaitsForOperations(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		a, b := fab.pair(0, j)
		const n = 1 << 20
		am, bm := alloc(t, 2*n), alloc(t, 2*n)
		for i := range n {
			am[i], bm[n+i] = byte(i*7), byte(i*11)
		}
		off, err := register(a, am, 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := register(b, bm, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.ReadFrom(off+n, n, off+n, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.WriteTo(off, n-8, off, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: off + n - 8, RemoteValue: 77}); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(am[n:], bm[n:]) {
			t.Error("the read has not ended")
		}
		if !bytes.Equal(am[:n-8], bm[:n-8]) {
			t.Error("the write has not ended")
		}
		if v := binary.LittleEndian.Uint64(bm[n-8:]); v != 77 {
			t.Errorf("the signal has stored %d", v)
		}
	})
}

// TestCloseCompletesBesideWaitsWithoutNumber: a connection that has as many waits and
// signals as it may loses nothing by its close.
func TestCloseCompletesBesideWaitsWithoutNumber(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOn(t, netConfig{Delay: 10 * time.Millisecond}, 2, engine.Config{})
		a, b := fab.pair(0, 1)
		const n = 64 << 10
		am, bm := alloc(t, n), alloc(t, n)
		for i := range am {
			am[i] = byte(i*7 + 1)
		}
		off, err := register(a, am, 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := register(b, bm, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.WriteTo(off, n, off, 0); err != nil {
			t.Fatal(err)
		}
		signal := fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: off, LocalValue: 1}
		for err == nil {
			err = a.FenceSignal(signal)
		}
		if !errors.Is(err, status.NoBufs) {
			t.Fatalf("signals without number: %v", err)
		}
		want := bytes.Repeat([]byte("0123456789"), 1000)
		if n, err := a.Send(context.Background(), want); n != len(want) || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(endReader{b}); !bytes.Equal(got, want) || !errors.Is(err, attach.ErrPeerClosed) {
			t.Errorf("%d bytes of %d, and %v", len(got), len(want), err)
		}
		if !bytes.Equal(am[8:], bm[8:]) { // the signals have changed the first word
			t.Error("the write has not arrived")
		}
	})
}

// TestCloseTakesAsLongAsThereIsProgress closes behind a write, and behind a read, that
// need much longer than a peer that does nothing is waited for.
func TestCloseTakesAsLongAsThereIsProgress(t *testing.T) {
	for name, begin := range map[string]func(a attach.NodeEndpoint, n, off int64) error{
		"write": func(a attach.NodeEndpoint, n, off int64) error { return a.WriteTo(off, n, off, 0) },
		"read":  func(a attach.NodeEndpoint, n, off int64) error { return a.ReadFrom(off, n, off, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				fab := newFabricOn(t, netConfig{Rate: 1 << 20}, 2, engine.Config{})
				a, b := fab.pair(0, 1)
				const n = 16 << 20
				am, bm := alloc(t, n), alloc(t, n)
				for i := range am {
					am[i], bm[i] = byte(i*7), byte(i*11)
				}
				off, err := register(a, am, 0, rma.ProtRead|rma.ProtWrite, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := register(b, bm, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
					t.Fatal(err)
				}
				if err := begin(a, n, off); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took < 15*time.Second {
					t.Errorf("the close took %v: nothing is shown", took)
				}
				if !bytes.Equal(am, bm) {
					t.Error("the operation was cut off")
				}
				if _, err := b.Recv(context.Background(), make([]byte, 1)); !errors.Is(err, attach.ErrPeerClosed) {
					t.Errorf("the peer sees %v", err)
				}
			})
		})
	}
}
