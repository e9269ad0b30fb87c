package ipc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// TestADeadlineHoldsBehindAWrite: while a call writes to the RMA path, and the peer's node
// takes nothing, those that wait behind it end with their ctx.
func TestADeadlineHoldsBehindAWrite(t *testing.T) {
	e := newClientEndpoint(&client{}, 1)
	p := &farPath{e: e}
	p.turn.L = &p.mu
	e.rma.Store(p)
	p.issued.Store(1)
	p.send.Lock()
	for name, call := range map[string]func(ctx context.Context) error{
		"fence": func(ctx context.Context) error {
			return e.FenceWait(ctx, fence.Mark{Side: fence.InitSelf, Seq: farMark | 1})
		},
		"atomic": func(ctx context.Context) error {
			_, err := e.Atomic(ctx, rma.Atomic{Op: rma.AtomicAdd, Width: 3}) // for the node to refuse
			return err
		},
	} {
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			ended <- call(ctx)
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(2 * time.Second):
			t.Errorf("%s: it waits for the write", name)
		}
	}
	close(e.quit)
	p.breaks(io.ErrClosedPipe)
	p.send.Unlock()
	e.wg.Wait()
}

// TestAMarkOfTheNodeCoversThePath: where the node has no operations, but has to be asked
// because it is not sure that the connection lives, a mark covers those on the path.
func TestAMarkOfTheNodeCoversThePath(t *testing.T) {
	pair := newDirectPair(t, nil)
	pair.s.node.mu.Lock()
	pair.s.node.direct.idle = true
	pair.s.node.mu.Unlock()
	e := pair.a.(*clientEndpoint)
	p := &farPath{e: e, done: 1, bad: 1, badCode: status.Fault} // of its one request
	p.turn.L = &p.mu
	p.issued.Store(1)
	e.rma.Store(p)
	defer e.rma.Store(nil)
	m, err := e.FenceMark(fence.InitSelf)
	check(t, "FenceMark", err, status.OK)
	check(t, "FenceWait", e.FenceWait(t.Context(), m), status.Fault)
}

// TestAFarPathBeginsAtOnce, not with its first operation: the node does not wait for that.
func TestAFarPathBeginsAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ends := make(chan *path.Conn, 2)
	open := func(s net.Conn, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		f, err := s.(*net.TCPConn).File()
		if err == nil {
			var c *path.Conn
			if c, err = path.New(t.Context(), f, path.Options{Plaintext: true, Changed: func() {}}); err == nil {
				ends <- c
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	var opening sync.WaitGroup
	opening.Go(func() { open(l.Accept()) })
	open(net.Dial("tcp", l.Addr().String()))
	opening.Wait()
	if t.Failed() {
		return
	}
	near, far := <-ends, <-ends
	defer near.Close()
	defer far.Close()
	far.Begin(0)
	if _, err := far.Write(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	<-near.Started() // the node has begun before
	if err := beginFar(t.Context(), near); err != nil {
		t.Fatal(err)
	}
	select {
	case <-far.Started():
	case <-time.After(2 * time.Second):
		t.Error("the node hears nothing")
	}
}
