package client

import (
	"context"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// TestCallsOfAStillNodeEndWithTheirContext makes calls while the node receives no request, like a
// stopped one, and uses the session when the node continues.
func TestCallsOfAStillNodeEndWithTheirContext(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	a, b := connect(t, c, s.dial(t))
	l, port := listens(t, c)
	fresh := must(c.Open())(t)
	self := c.Self()

	s.node.mu.Lock() // the session's reader waits for it from the first SELF on
	still := make(chan struct{})
	go func() { defer close(still); c.Nodes() }()
	waitRequests(t, c, 1)
	dst := addr.Addr{Node: 3, Port: port}
	for name, call := range map[string]func(context.Context) error{
		"Open":      func(ctx context.Context) error { return second(c.OpenContext(ctx)) },
		"Connect":   func(ctx context.Context) error { return second(fresh.Connect(ctx, dst)) },
		"Accept":    func(ctx context.Context) error { _, _, err := l.Accept(ctx); return err },
		"Recv":      func(ctx context.Context) error { return second(a.Recv(ctx, make([]byte, 1))) },
		"FenceWait": func(ctx context.Context) error { return a.FenceWait(ctx, fence.Mark{Side: fence.InitPeer, Seq: 1}) },
		"Atomic": func(ctx context.Context) error {
			return second(a.Atomic(ctx, rma.Atomic{Op: rma.AtomicAdd, Width: 8}))
		},
	} {
		for kind, d := range map[string]time.Duration{"later": 20 * time.Millisecond, "before": -1} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			select {
			case err := <-done:
				check(t, name+" whose context ends "+kind, err, status.TimedOut)
			case <-time.After(limit):
				t.Errorf("%s goes on after its context", name)
			}
			cancel()
		}
	}
	for name, call := range map[string]func(){
		"Self":  func() { c.Self() },
		"Ready": func() { l.Ready() },
		"Close": func() { fresh.Close() },
	} {
		begun := time.Now()
		if call(); time.Since(begun) > limit {
			t.Errorf("%s waits for the node", name)
		}
	}
	s.node.mu.Unlock()
	<-still
	if got := c.Self(); got != self {
		t.Errorf("Self = %+v after the node went on, want %+v", got, self)
	}
	check(t, "Send", second(a.Send(t.Context(), []byte("x"))), status.OK)
	check(t, "Recv", second(b.Recv(t.Context(), make([]byte, 1))), status.OK)
	waitRequests(t, c, 0)
	eventually(t, "endpoints that nobody has got are closed", func() bool {
		s.node.mu.Lock()
		defer s.node.mu.Unlock()
		open := 0
		for sess := range s.node.sessions {
			open += len(sess.eps)
		}
		return open == 3 // a, b and l
	})
}
