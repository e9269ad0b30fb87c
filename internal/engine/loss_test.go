package engine_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/rma"
)

// A blocker is one call that waits for node 1.
type blocker struct {
	name string
	call func(a attach.NodeEndpoint) error // on node 0's end of a connection of its own
	want []error                           // any of them
}

var reset = []error{syscall.ECONNRESET}

// blockers are all kinds of calls that wait for the peer.
func blockers(fab *fabric, busy addr.Addr) []blocker {
	ctx := context.Background()
	buf := make([]byte, 4<<20)
	const all = rma.Sync
	return []blocker{
		{"recv", func(a attach.NodeEndpoint) error { _, err := a.Recv(ctx, make([]byte, 1)); return err }, reset},
		{"send on a full inbox", func(a attach.NodeEndpoint) error { _, err := a.Send(ctx, buf); return err }, reset},
		{"connect", func(attach.NodeEndpoint) error { _, err := fab.open(0).Connect(ctx, busy); return err }, []error{syscall.ECONNRESET, syscall.ENODEV}},
		{"try connect", func(attach.NodeEndpoint) error { return polled(fab.open(0), busy) }, []error{syscall.ECONNRESET, syscall.ENODEV}},
		{"writeto", func(a attach.NodeEndpoint) error { return a.WriteTo(0, 4096, 0, all) }, reset},
		{"readfrom", func(a attach.NodeEndpoint) error { return a.ReadFrom(0, 4096, 0, all) }, reset},
		{"vwriteto", func(a attach.NodeEndpoint) error { return a.VWriteTo(make([]byte, 64), 0, all) }, reset},
		{"vreadfrom", func(a attach.NodeEndpoint) error { return a.VReadFrom(make([]byte, 64), 0, all) }, reset},
		{"atomic", func(a attach.NodeEndpoint) error {
			_, err := a.Atomic(ctx, rma.Atomic{Op: rma.AtomicAdd, Width: 8})
			return err
		}, reset},
		{"fence wait", func(a attach.NodeEndpoint) error { return waitFenced(a, fence.InitSelf) }, reset},
		{"fence of the peer's", func(a attach.NodeEndpoint) error { return waitFenced(a, fence.InitPeer) }, reset},
		{"operations without end", endless, reset},
		{"poll", hungUp, reset},
	}
}

// waitFenced writes, and waits for the operations that one side has begun.
func waitFenced(a attach.NodeEndpoint, by fence.Side) error {
	if err := a.WriteTo(0, 4096, 0, 0); err != nil {
		return err
	}
	m, err := a.FenceMark(by)
	if err != nil {
		return err
	}
	return a.FenceWait(context.Background(), m)
}

// endless writes until there is no room for another operation.
func endless(a attach.NodeEndpoint) error {
	for {
		if err := a.WriteTo(0, 4096, 0, 0); err != nil {
			return err
		}
	}
}

// hungUp waits for the end of a connection as poll does, and returns the error of a send
// then.
func hungUp(a attach.NodeEndpoint) error {
	changed := make(chan struct{}, 1)
	defer a.Notify(changed)()
	for a.Ready()&attach.PollHup == 0 {
		<-changed
	}
	_, err := a.TrySend([]byte{1})
	return err
}

// polled connects without blocking and waits for the result as poll does.
func polled(ep attach.NodeEndpoint, dst addr.Addr) error {
	changed := make(chan struct{}, 1)
	defer ep.Notify(changed)()
	for {
		_, err := ep.TryConnect(dst)
		if !errors.Is(err, syscall.EINPROGRESS) {
			return err
		}
		<-changed
	}
}

// TestNodeLossEndsEverythingBeforeItIsReported has a call of every kind wait for node
// 1, of which nothing arrives any more, and takes the node away: all of them end
// at once with the right errno, and the node's applications are notified
// afterwards. Bytes that arrived before are still received, an accept of any
// peer goes on, and so does all that has to do with other nodes.
func TestNodeLossEndsEverythingBeforeItIsReported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 3)
		busy, at := fab.listener(1, 8) // no acceptor
		defer busy.Close()
		calls := blockers(fab, at)
		ends := make([]attach.NodeEndpoint, len(calls))
		for i := range calls {
			ends[i] = fab.pairWithWindows(t)
		}
		words, from := fab.pair(0, 1)
		if _, err := from.Send(context.Background(), []byte("last words")); err != nil {
			t.Fatal(err)
		}
		other, friend := fab.pair(0, 2)
		own, _ := fab.listener(0, 1)
		accepted := make(chan error, 1)
		go func() { _, _, err := own.Accept(context.Background()); accepted <- err }()
		synctest.Wait()
		fab.hub.Cut("node0.1", "node1.1")

		results := make([]chan error, len(calls))
		var reported atomic.Bool
		for i, c := range calls {
			results[i] = make(chan error, 1)
			go func() { results[i] <- c.call(ends[i]) }()
		}
		synctest.Wait()
		for i, c := range calls {
			if len(results[i]) > 0 {
				t.Errorf("%s does not wait: %v", c.name, <-results[i])
			}
		}
		defer fab.nodes[0].NewSession(attach.Credentials{}).Watch(func(ev attach.Event) {
			if ev.Kind != attach.NodeRemoved || ev.Reason != "crashed" || ev.Incarnation.Node != 1 {
				t.Errorf("event %+v", ev)
			}
			for i, c := range calls { // whatever is begun now fails too
				if _, err := ends[i].TrySend([]byte{1}); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("a send on the connection of %s, as the loss is reported: %v", c.name, err)
				}
			}
			reported.Store(true)
		})()
		began := time.Now()
		fab.nodes[0].NodeLost(addr.Incarnation{Node: 1, Generation: 1}, "crashed")
		synctest.Wait()
		if took := time.Since(began); took != 0 || !reported.Load() {
			t.Errorf("it took %v, reported: %v; want that nothing waits for anything", took, reported.Load())
		}
		for i, c := range calls {
			select {
			case err := <-results[i]:
				if !slices.ContainsFunc(c.want, func(want error) bool { return errors.Is(err, want) }) {
					t.Errorf("%s: %v, want one of %v", c.name, err, c.want)
				}
			default:
				t.Errorf("%s still waits", c.name)
			}
		}
		lastWords(t, words)
		if _, err := fab.open(0).Connect(context.Background(), at); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("connect to a lost node: %v, want ENODEV", err)
		}
		if len(accepted) > 0 {
			t.Errorf("an accept, which waits for anybody, ended with %v", <-accepted)
		}
		if _, err := other.Send(context.Background(), []byte("hello")); err != nil {
			t.Errorf("send to another node: %v", err)
		}
		if n, err := friend.Recv(context.Background(), make([]byte, 5)); n != 5 || err != nil {
			t.Errorf("receive of another node: %d, %v", n, err)
		}
		own.Close()
		if err := <-accepted; !errors.Is(err, syscall.EINTR) {
			t.Errorf("accept on an endpoint that is closed: %v, want EINTR", err)
		}
		time.Sleep(time.Second)
	})
}

// pairWithWindows returns node 0's end of a connection to node 1; both ends
// have a window.
func (f *fabric) pairWithWindows(t *testing.T) attach.NodeEndpoint {
	t.Helper()
	a, b := f.pair(0, 1)
	for _, ep := range []attach.NodeEndpoint{a, b} {
		if _, err := register(ep, alloc(t, 4096), 0, rma.ProtRead|rma.ProtWrite, rma.MapFixed); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// lastWords receives the bytes that a lost node had sent, and then the loss.
func lastWords(t *testing.T, ep attach.NodeEndpoint) {
	t.Helper()
	buf := make([]byte, 100)
	if n, err := ep.Recv(context.Background(), buf); string(buf[:n]) != "last words" {
		t.Errorf("what had arrived: %q, %v", buf[:n], err)
	}
	if _, err := ep.Recv(context.Background(), buf); !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		t.Errorf("behind it: %v, want ECONNRESET", err)
	}
}
