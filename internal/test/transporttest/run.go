// Package transporttest holds the tests that every transport provider must pass: Run
// tests each sentence of the contract in package transport.
package transporttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
)

// A Pair is two providers that reach each other.
type Pair struct {
	// A and B are open; the suite closes them.
	A, B transport.Provider

	// IDA and IDB are the identities that their certificates prove.
	IDA, IDB transport.Identity

	// MaxStreams is the limit of open streams that both were configured with.
	// Keep it below 100, so that the suite can reach it.
	MaxStreams int

	// Nowhere is an address without a listener.
	Nowhere string
}

// Run runs the suite, each test in a testing/synctest bubble of its own. make
// is called in the bubble; all that it starts must end with the providers or
// with t.
func Run(t *testing.T, make func(t *testing.T) Pair) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { runCase(t, make, c.run) })
		})
	}
}

// RunOnSockets runs the suite outside bubbles, for providers on real sockets,
// and checks that no goroutine is left.
func RunOnSockets(t *testing.T, make func(t *testing.T) Pair) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			runCase(t, make, c.run)
		})
	}
}

// cases are the tests, by the behaviour that each asks for.
var cases = []struct {
	name string
	run  func(*env)
}{
	{"both sides know each other", testIdentities},
	{"both sides may dial", testDialBothWays},
	{"dialing nobody fails", testDialNobody},
	{"dial ends with its context", testDialContext},
	{"accept ends with its context", testAcceptContext},
	{"a closed provider refuses", testClosedProvider},
	{"closing a provider notifies its peers", testProviderCloseReachesPeers},
	{"64 simultaneous dials succeed", testDialStorm},

	{"a stream keeps the order of its bytes", testStreamOrder},
	{"the end comes after the data", testEndAfterData},
	{"a closed empty stream is seen", testEmptyStream},
	{"write copies", testWriteCopies},
	{"writing after close fails", testWriteAfterClose},
	{"cancel after close loses nothing", testCancelAfterClose},
	{"the sender's cancel reaches the reader", testSenderCancel},
	{"the sender's cancel wakes its write", testSenderCancelWakesWrite},
	{"the reader's cancel reaches the writer", testReaderCancel},
	{"the reader's cancel wakes its read", testReaderCancelWakesRead},
	{"read deadlines", testReadDeadline},
	{"write deadlines", testWriteDeadline},
	{"try write takes all or nothing", testTryWrite},
	{"an unread stream does not stop another", testIndependence},
	{"many streams at once", testManyStreams},
	{"streams are accepted in the order in which they were begun", testStreamsInOrder},
	{"finished streams make room for new ones", testStreamCredit},
	{"open stream waits at the limit", testStreamLimit},
	{"canceled streams make room for new ones", testCanceledStreamCredit},

	{"datagrams arrive", testDatagrams},
	{"datagrams are bounded in size", testDatagramSize},
	{"datagrams neither block nor pile up", testDatagramFlood},

	{"close sends code and reason", testCloseReason},
	{"the first close decides", testFirstCloseDecides},
	{"a long reason is cut", testLongReason},
	{"close wakes every call on both sides", testCloseWakes},
}

// An env is the state of one test: two providers and a session between them.
type env struct {
	*testing.T
	pair Pair
	ctx  context.Context
	a, b transport.Session // dialed by A, accepted by B
}

// patience bounds waits for events that must come soon. It is generous for real sockets
// on a busy machine; in a bubble it costs nothing.
const patience = 20 * time.Second

func runCase(t *testing.T, make func(t *testing.T) Pair, run func(*env)) {
	p := make(t)
	defer p.B.Close()
	defer p.A.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e := &env{T: t, pair: p, ctx: ctx}
	e.a, e.b = connect(ctx, t, p.A, p.B)
	run(e)
}

// open opens a stream from A to B.
func (e *env) open() transport.SendStream {
	e.Helper()
	l, err := e.a.OpenStream(e.ctx)
	if err != nil {
		e.Fatalf("open stream: %v", err)
	}
	return l
}

// accept accepts a stream at B.
func (e *env) accept() transport.RecvStream {
	e.Helper()
	l, err := e.b.AcceptStream(e.ctx)
	if err != nil {
		e.Fatalf("accept stream: %v", err)
	}
	return l
}

// stream returns both ends of a stream from A to B, on which "hello" was sent.
func (e *env) stream() (transport.SendStream, transport.RecvStream) {
	e.Helper()
	s := e.open()
	e.write(s, []byte("hello"))
	r := e.accept()
	e.want(r, []byte("hello"))
	return s, r
}

func (e *env) write(l transport.SendStream, p []byte) {
	e.Helper()
	if n, err := l.Write(p); n != len(p) || err != nil {
		e.Fatalf("write of %d bytes: %d, %v", len(p), n, err)
	}
}

// want reads exactly p.
func (e *env) want(l transport.RecvStream, p []byte) {
	e.Helper()
	got := make([]byte, len(p))
	if n, err := io.ReadFull(l, got); err != nil {
		e.Fatalf("read %d of %d bytes: %v", n, len(p), err)
	}
	if !bytes.Equal(got, p) {
		e.Fatalf("read %.40q, want %.40q", got, p)
	}
}

// wantEnd reads to the end and expects exactly p.
func (e *env) wantEnd(l transport.RecvStream, p []byte) {
	e.Helper()
	got, err := io.ReadAll(l)
	if err != nil {
		e.Fatalf("after %d bytes: %v, want the end", len(got), err)
	}
	if !bytes.Equal(got, p) {
		e.Fatalf("read %d bytes, %.40q; want %d, %.40q", len(got), got, len(p), p)
	}
}

// wantError checks that err is target.
func (e *env) wantError(what string, err, target error) {
	e.Helper()
	if !errors.Is(err, target) {
		e.Errorf("%s: %v, want %v", what, err, target)
	}
}

// wantClose checks that err is the end of a session with the fields of c.
func (e *env) wantClose(what string, err error, c transport.CloseError) {
	e.Helper()
	var got *transport.CloseError
	if !errors.As(err, &got) || *got != c {
		e.Errorf("%s: %#v (%v), want %#v", what, got, err, c)
	}
	if !errors.Is(err, transport.ErrClosed) {
		e.Errorf("%s: %v is not ErrClosed", what, err)
	}
}

// soon waits for a value from ch.
func soon[T any](e *env, what string, ch <-chan T) T {
	e.Helper()
	select {
	case v := <-ch:
		return v
	case <-e.ctx.Done():
		e.Fatalf("%s: did not happen", what)
		panic("unreachable")
	}
}

// done waits for the end of an async call that must not fail.
func (e *env) done(what string, call <-chan error) {
	e.Helper()
	if err := soon(e, what, call); err != nil {
		e.Errorf("%s: %v", what, err)
	}
}

// async runs f on a goroutine and returns its result.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// payload returns n bytes that differ everywhere.
func payload(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(p)
	return p
}

// fill writes to l until it takes no more, and returns how much it took.
func (e *env) fill(l transport.SendStream) int {
	e.Helper()
	total := 0
	chunk := make([]byte, 64<<10)
	for {
		l.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := l.Write(chunk)
		total += n
		if err != nil {
			l.SetWriteDeadline(time.Time{})
			return total
		}
		if total > 1<<30 {
			e.Fatal("a stream that nobody reads takes more than 1 GiB")
		}
	}
}
