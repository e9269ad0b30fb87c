package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

func testIdentities(e *env) {
	if got := e.a.Peer(); got != e.pair.IDB {
		e.Errorf("dialer's peer is %v, want %v", got, e.pair.IDB)
	}
	if got := e.b.Peer(); got != e.pair.IDA {
		e.Errorf("accepter's peer is %v, want %v", got, e.pair.IDA)
	}
	if got, want := e.a.RemoteAddr(), e.b.LocalAddr(); got != want {
		e.Errorf("dialer's remote address is %q, want %q", got, want)
	}
	if got, want := e.b.RemoteAddr(), e.a.LocalAddr(); got != want {
		e.Errorf("accepter's remote address is %q, want %q", got, want)
	}
	if e.pair.A.Name() == "" || e.pair.A.Name() != e.pair.B.Name() {
		e.Errorf("names %q and %q", e.pair.A.Name(), e.pair.B.Name())
	}
	if err := e.a.Err(); err != nil {
		e.Errorf("Err of a live session: %v", err)
	}
}

func testDialBothWays(e *env) {
	e.a, e.b = connect(e.ctx, e, e.pair.B, e.pair.A)
	s, r := e.stream()
	s.Close()
	e.wantEnd(r, nil)
}

func testDialNobody(e *env) {
	s, err := e.pair.A.Dial(e.ctx, e.pair.Nowhere)
	if err == nil {
		e.Fatalf("a session to nobody: %v", s.RemoteAddr())
	}
	if e.ctx.Err() != nil {
		e.Errorf("dial waited for its context: %v", err)
	}
	if _, err := e.pair.A.Dial(e.ctx, "no address at all"); err == nil {
		e.Error("a session to no address")
	}
}

func testDialContext(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := e.pair.A.Dial(ctx, e.pair.B.Addr())
	e.wantError("dial with an ended context", err, context.Canceled)
}

func testAcceptContext(e *env) {
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Millisecond)
	defer cancel()
	_, err := e.pair.B.Accept(ctx)
	e.wantError("accept", err, context.DeadlineExceeded)
	_, err = e.b.AcceptStream(ctx)
	e.wantError("accept stream", err, context.DeadlineExceeded)
	_, err = e.b.ReceiveDatagram(ctx)
	e.wantError("receive datagram", err, context.DeadlineExceeded)
	if err := e.b.Err(); err != nil {
		e.Errorf("an ended context ended the session: %v", err)
	}
}

func testClosedProvider(e *env) {
	waiting := async(func() error { _, err := e.pair.B.Accept(e.ctx); return err })
	if err := e.pair.B.Close(); err != nil {
		e.Errorf("close: %v", err)
	}
	if err := e.pair.B.Close(); err != nil {
		e.Errorf("second close: %v", err)
	}
	e.wantError("accept during close", soon(e, "accept", waiting), transport.ErrClosed)
	_, err := e.pair.B.Accept(e.ctx)
	e.wantError("accept after close", err, transport.ErrClosed)
	_, err = e.pair.B.Dial(e.ctx, e.pair.A.Addr())
	e.wantError("dial after close", err, transport.ErrClosed)
}

func testProviderCloseReachesPeers(e *env) {
	start := time.Now()
	e.pair.B.Close()
	soon(e, "end at the peer", e.a.Done())
	var got *transport.CloseError
	if !errors.As(e.a.Err(), &got) || !got.Remote || got.Code != transport.CodeOK {
		e.Errorf("peer's session ended with %v, want a remote CodeOK", e.a.Err())
	}
	if d := time.Since(start); d > 2*time.Second {
		e.Errorf("the peer learned of it after %v", d)
	}
	soon(e, "end here", e.b.Done())
}

func testDialStorm(e *env) {
	const count = 64
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			s, err := e.pair.A.Dial(e.ctx, e.pair.B.Addr())
			if err != nil {
				e.Errorf("dial: %v", err)
				return
			}
			if err := s.SendDatagram([]byte("x")); err != nil {
				e.Errorf("datagram on a fresh session: %v", err)
			}
		})
	}
	for i := range count {
		if _, err := e.pair.B.Accept(e.ctx); err != nil {
			e.Fatalf("accept %d: %v", i, err)
		}
	}
	all.Wait()
}
