package client

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// listens returns an endpoint that listens, and its port.
func listens(t testing.TB, s attach.Session) (attach.Endpoint, addr.Port) {
	t.Helper()
	l := must(s.Open())(t)
	port := must(l.Bind(0))(t)
	check(t, "Listen", l.Listen(1<<20), status.OK)
	return l, port
}

// blockMoves fills the slots of calls that move bytes with n that wait for e's end.
func blockMoves(t testing.TB, e attach.Endpoint, n int) (wait func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { e.FenceWait(context.Background(), fence.Mark{Side: fence.InitSelf, Seq: 1}) })
	}
	return wg.Wait
}

// TestBlockedCallsKeepNobodyOut blocks more calls of every kind than a session's number of
// requests, and uses the session nevertheless. Endpoints closed meanwhile are closed.
func TestBlockedCallsKeepNobodyOut(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	const listeners = proto.MaxRequests + 50
	all := make([]attach.Endpoint, listeners)
	ports := make([]addr.Port, listeners)
	for i := range all {
		all[i], ports[i] = listens(t, c)
		wg.Go(func() {
			if ep, _, err := all[i].Accept(context.Background()); err == nil {
				ep.Close()
			}
		})
	}
	defer func() {
		for _, l := range all[1:] {
			check(t, "Close", l.Close(), status.OK)
		}
	}()
	waitRequests(t, c, listeners)

	a, b := connect(t, c, c)
	wait := blockMoves(t, a, proto.MaxRequests+50)
	waitRequests(t, c, listeners+proto.MaxRequests)
	if ids, _, err := c.Nodes(); len(ids) == 0 || err != nil {
		t.Errorf("Nodes = %v, %v", ids, err)
	}
	check(t, "Close of a listener with a blocked Accept", all[0].Close(), status.OK)
	_, err := must(c.Open())(t).Connect(t.Context(), addr.Addr{Node: 3, Port: ports[0]})
	check(t, "Connect to a closed listener", err, status.Refused)
	_, err = must(c.Open())(t).Connect(t.Context(), addr.Addr{Node: 3, Port: ports[1]})
	check(t, "Connect to a listener", err, status.OK)
	check(t, "Close", a.Close(), status.OK)
	wait()
	check(t, "Close", b.Close(), status.OK)
}

// TestCloseNeedsNoPlace releases resources while every place is taken.
func TestCloseNeedsNoPlace(t *testing.T) {
	s := serve(t, nil)
	c, other := s.dial(t), s.dial(t)
	a, b := connect(t, c, other)
	m := must(c.Alloc(8192))(t)
	off := must(a.Register(m.Bytes(), 0, rma.ProtRead, 0))(t)
	wait := blockMoves(t, a, proto.MaxRequests+1)
	waitRequests(t, c, proto.MaxRequests)
	check(t, "Unregister", a.Unregister(off, 8192), status.OK)
	check(t, "Close of the memory", m.Close(), status.OK)
	check(t, "Close", a.Close(), status.OK)
	wait()
	eventually(t, "the peer sees the end", func() bool { return b.Ready()&attach.PollHup != 0 })
}

// TestConnectsWaitInOrder begins more connects than a session may have in progress.
func TestConnectsWaitInOrder(t *testing.T) {
	s := serve(t, nil)
	c, other := s.dial(t), s.dial(t)
	l, port := listens(t, other)
	dst := addr.Addr{Node: 3, Port: port}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range proto.MaxRequests {
		ep := must(c.Open())(t)
		wg.Go(func() { ep.Connect(ctx, dst) })
	}
	waitRequests(t, c, proto.MaxRequests)
	const late = 3
	for i := range late {
		ep := must(c.Open())(t)
		check(t, "Bind", second(ep.Bind(addr.Port(2000+i))), status.OK)
		wg.Go(func() { ep.Connect(ctx, dst) })
		eventually(t, "one more waits", func() bool { return waiting() == i+1 })
	}
	quit, stop := context.WithTimeout(ctx, time.Millisecond)
	defer stop()
	_, err := must(c.Open())(t).Connect(quit, dst)
	check(t, "Connect whose context ends while it waits for a place", err, status.TimedOut)
	var from []addr.Port
	for i := range proto.MaxRequests + late {
		if i > 0 && i <= late { // one after the other
			eventually(t, "the next has its place", func() bool { return waiting() == late-i })
			waitRequests(t, c, proto.MaxRequests)
		}
		ep, addr, err := l.Accept(ctx)
		check(t, "Accept", err, status.OK)
		if ep == nil {
			t.FailNow()
		}
		if addr.Port < 2000+late {
			from = append(from, addr.Port)
		}
		check(t, "Close", ep.Close(), status.OK)
	}
	if len(from) != late || from[0] != 2000 || from[1] != 2001 || from[2] != 2002 {
		t.Errorf("those that waited came from %v, want them in the order of the calls", from)
	}
}

func second[T any](_ T, err error) error { return err }

// waiting returns how many calls wait for a place.
func waiting() int {
	stacks := make([]byte, 16<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "client.slots.acquire(")
}
