package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// TestADeadlineHoldsBehindAWrite: while a call writes to the RMA path, and the peer's node reads
// nothing, the calls queued after it end with their ctx.
func TestADeadlineHoldsBehindAWrite(t *testing.T) {
	e := newEndpoint(&session{}, 1)
	p := &farPath{e: e}
	p.changed.L = &p.mu
	e.far.path.Store(p)
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
	e.stop()
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
	e := pair.a.(*endpoint)
	p := &farPath{e: e, done: 1, bad: 1, badCode: status.Fault} // of its one request
	p.changed.L = &p.mu
	p.issued.Store(1)
	e.far.path.Store(p)
	defer e.far.path.Store(nil)
	m, err := e.FenceMark(fence.InitSelf)
	check(t, "FenceMark", err, status.OK)
	check(t, "FenceWait", e.FenceWait(t.Context(), m), status.Fault)
}

// pathPair returns both ends of a path without TLS, which has not begun.
func pathPair(t *testing.T) (near, far *path.Conn) {
	t.Helper()
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
		t.FailNow()
	}
	near, far = <-ends, <-ends
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestAFarPathBeginsAtOnce, not with its first operation: the node does not wait for that.
func TestAFarPathBeginsAtOnce(t *testing.T) {
	near, far := pathPair(t)
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
		t.Error("the node receives nothing")
	}
}

// A farNode is the other end of a farPath: it counts requests, and answers those that ask
// for that once a token is in may.
type farNode struct {
	may               chan struct{}
	requests, answers atomic.Int64
}

// newFarNode returns a path and the node that serves it.
func newFarNode(t *testing.T) (*farPath, *farNode) {
	t.Helper()
	near, far := pathPair(t)
	var beginning sync.WaitGroup
	beginning.Go(func() {
		if err := beginFar(t.Context(), far); err != nil {
			t.Error(err)
		}
	})
	if err := beginFar(t.Context(), near); err != nil {
		t.Fatal(err)
	}
	beginning.Wait()
	e := newEndpoint(&session{}, 1)
	p := &farPath{e: e, conn: near}
	p.changed.L = &p.mu
	n := &farNode{may: make(chan struct{}, 1000)}
	var serving sync.WaitGroup
	serving.Go(func() { n.serve(far) })
	t.Cleanup(func() {
		e.stop()
		near.Close()
		close(n.may)
		serving.Wait()
		e.wg.Wait()
	})
	return p, n
}

func (n *farNode) serve(far *path.Conn) {
	ctx := context.Background()
	fill := func(b []byte) error {
		for len(b) > 0 {
			k, err := far.Read(ctx, b)
			if err != nil {
				return err
			}
			b = b[k:]
		}
		return nil
	}
	for {
		var head [path.RMARequestLen]byte
		if fill(head[:]) != nil {
			return
		}
		r, err := path.ParseRMARequest(&head)
		if err != nil || r.Kind == path.RMAWrite && fill(make([]byte, r.Length)) != nil {
			return
		}
		if n.requests.Add(1); !r.WantsAnswer() {
			continue
		}
		n.answers.Add(1)
		<-n.may
		a := path.RMAAnswer{Kind: path.RMADone, Flags: path.RMALast, Number: r.Number}
		if _, err := far.Write(ctx, a.AppendTo(nil)); err != nil {
			return
		}
	}
}

// post writes 8 bytes without waiting for them.
func (p *farPath) post(t *testing.T) {
	t.Helper()
	q := newFar()
	defer q.free()
	q.payload = append(q.parts[:0], make([]byte, 8))
	q.writes(8, 0, 0)
	if _, _, err := p.write(q); err != nil {
		t.Fatal(err)
	}
}

// TestAFenceBehindAWriteAsksForNothing: the write has asked for the answer that the fence
// waits for.
func TestAFenceBehindAWriteAsksForNothing(t *testing.T) {
	p, n := newFarNode(t)
	for i := range int64(3) {
		n.may <- struct{}{}
		p.post(t)
		check(t, "flushed", p.flushed(t.Context(), p.last()), status.OK)
		if got := n.requests.Load(); got != i+1 {
			t.Fatalf("%d writes and fences are %d requests", i+1, got)
		}
	}
}

// TestUnclaimedAnswersAreBounded: writes without a later waiting call request no more answers than
// there is room for, and request some again once those are read.
func TestUnclaimedAnswersAreBounded(t *testing.T) {
	p, n := newFarNode(t)
	for range 100 {
		n.may <- struct{}{}
		p.post(t)
	}
	n.may <- struct{}{}
	check(t, "flushed", p.flushed(t.Context(), p.last()), status.OK)
	if r, a := n.requests.Load(), n.answers.Load(); r != 101 || a != maxUnclaimed+1 {
		t.Errorf("%d requests with %d answers, want 101 with %d", r, a, maxUnclaimed+1)
	}
	n.may <- struct{}{}
	p.post(t)
	check(t, "flushed", p.flushed(context.Background(), p.last()), status.OK)
	if a := n.answers.Load(); a != maxUnclaimed+2 {
		t.Errorf("%d answers, want %d", a, maxUnclaimed+2)
	}
}

// TestAFenceThatIsGivenUpLeavesTheAnswers: later calls read the answers that it waited for.
func TestAFenceThatIsGivenUpLeavesTheAnswers(t *testing.T) {
	p, n := newFarNode(t)
	for range 3 {
		p.post(t)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.flushed(short, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fence without an answer: %v", err)
	}
	if _, err := p.ask(short, path.RMARequest{Kind: path.RMANop, Flags: path.RMAWantAnswer}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call without an answer: %v", err)
	}
	for range 10 {
		n.may <- struct{}{}
	}
	check(t, "flushed", p.flushed(t.Context(), p.last()), status.OK)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unclaimed) != 0 || p.reading != p.tickets {
		t.Errorf("%d answers are unclaimed, and %d of %d are read", len(p.unclaimed), p.reading, p.tickets)
	}
}
