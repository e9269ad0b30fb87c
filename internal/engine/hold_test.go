package engine_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// held returns a request from node 0 that a listener of node j holds, and the results of its
// connect.
func (f *fabric) held(ctx context.Context, l attach.NodeEndpoint, at addr.Addr) (a attach.NodeEndpoint, h attach.NodeEndpoint, connected <-chan error) {
	f.t.Helper()
	a = f.open(0)
	result := make(chan error, 1)
	go func() {
		_, err := a.Connect(ctx, at)
		result <- err
	}()
	h, from, err := l.Accept(context.Background())
	if err != nil || from != a.LocalAddr() {
		f.t.Fatalf("accept: from %v, %v", from, err)
	}
	synctest.Wait()
	select {
	case err := <-result:
		f.t.Fatalf("connected before Settle: %v", err)
	default:
	}
	return a, h, result
}

// A held request is granted or refused by Settle, and refused by the close; one whose
// requester gives up hangs up.
func TestHeldRequests(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 1)
		l.Hold()
		settle := func(ep attach.NodeEndpoint, code status.Code) error { return ep.Settle(code) }

		a, b, connected := fab.held(t.Context(), l, at)
		other, b2, connected2 := fab.held(t.Context(), l, at) // while the first one waits
		if err := settle(b, status.OK); err != nil {
			t.Errorf("grant: %v", err)
		}
		if err := <-connected; err != nil {
			t.Errorf("a request that was granted: %v", err)
		}
		sayWord(t, a, b)
		if err := settle(b, status.Refused); err != nil {
			t.Errorf("a second Settle: %v", err)
		}
		sayWord(t, b, a)
		if err := settle(b2, status.TimedOut); err != status.TimedOut {
			t.Errorf("refuse: %v", err)
		}
		if err := <-connected2; !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("a request that was refused with a time-out: %v", err)
		}
		b2.Close()
		go l.Accept(context.Background())
		if _, err := other.Connect(t.Context(), at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("held for longer than the requester waits: %v", err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		_, b, connected = fab.held(ctx, l, at)
		cancel()
		if err := <-connected; !errors.Is(err, context.Canceled) {
			t.Errorf("withdrawn: %v", err)
		}
		<-b.HungUp()
		if err := settle(b, status.OK); err == nil {
			t.Error("granted to a requester that is gone")
		}
		b.Close()

		for _, end := range []func(attach.NodeEndpoint) error{attach.NodeEndpoint.Close, func(e attach.NodeEndpoint) error { return e.Abort("x") }} {
			_, b, connected = fab.held(t.Context(), l, at)
			began := time.Now()
			if err := end(b); err != nil {
				t.Error(err)
			}
			if err := <-connected; !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > 0 {
				t.Errorf("its endpoint was closed: %v after %v", err, time.Since(began))
			}
		}

		_, b, connected = fab.held(t.Context(), l, at)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := settle(b, status.OK); err != nil { // as an accepted connection outlives its listener
			t.Errorf("the listener was closed: %v", err)
		}
		if err := <-connected; err != nil {
			t.Errorf("the listener was closed: %v", err)
		}
	})
}

// sayWord sends a word from a to b.
func sayWord(t *testing.T, a, b attach.NodeEndpoint) {
	t.Helper()
	if _, err := a.Send(t.Context(), []byte("word")); err != nil {
		t.Error(err)
	}
	got := make([]byte, 4)
	if n, err := b.Recv(t.Context(), got); string(got[:n]) != "word" || err != nil {
		t.Errorf("received %q, %v", got[:n], err)
	}
}
