package path

import (
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/rawio"
)

// plainPair returns the two ends of a path without TLS, whose direction from a to b has begun.
func plainPair(t *testing.T) (a, b *Conn) {
	a, b = pair(t, true)
	a.Begin(0)
	if _, err := a.Write(t.Context(), []byte("first")); err != nil {
		t.Fatal(err)
	}
	await(t, b, 0)
	if _, err := io.ReadFull(reader{t, b}, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// taking returns a move that reads into p, and sets n.
func taking(p []byte, n *int) func(fd int) error {
	return func(fd int) (err error) {
		*n, err = rawio.Read(fd, p)
		return err
	}
}

// TestASplicedSocketIsThatOfReadsAndWrites: the bytes of calls and moves are in order.
func TestASplicedSocketIsThatOfReadsAndWrites(t *testing.T) {
	a, b := plainPair(t)
	if !a.Plain() || !b.Plain() {
		t.Fatal("a path without TLS is not plain")
	}
	a.SpliceOut(func(fd int) error {
		_, err := rawio.Write(fd, []byte("one"))
		return err
	})
	if _, err := a.Write(t.Context(), []byte("two")); err != nil {
		t.Fatal(err)
	}
	for has := false; !has; {
		var err error
		if has, err = b.Peek(); err != nil { // the socket has one byte less
			t.Fatal(err)
		}
	}
	p, n := make([]byte, 16), 0
	if err := b.SpliceIn(taking(p, &n)); n != 0 || err != nil {
		t.Errorf("%d bytes overtake one that was read ahead, %v", n, err)
	}
	if n, err := b.TryRead(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for got := 1; got < 6; got += n {
		if err := b.SpliceIn(taking(p[got:], &n)); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	if string(p[:6]) != "onetwo" {
		t.Errorf("got %q", p[:6])
	}
	if err := a.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.SpliceIn(taking(p, &n)); n != 0 || err != nil {
		t.Errorf("the end is %d bytes, %v; want a Read to report it", n, err)
	}
	if _, err := b.Read(t.Context(), p); err != io.EOF {
		t.Errorf("read the end: %v", err)
	}
}

// TestALossOfASplicedSocketIsNoEnd: the kernel reports a reset once.
func TestALossOfASplicedSocketIsNoEnd(t *testing.T) {
	for name, lose := range map[string]func(a, b *Conn){
		"reset":     func(a, _ *Conn) { a.sock.tcp.SetLinger(0); a.sock.tcp.Close() },
		"shutdown":  func(_, b *Conn) { b.Shutdown() },
		"interrupt": func(_, b *Conn) { b.Interrupt() },
	} {
		a, b := plainPair(t)
		lose(a, b)
		p, n := make([]byte, 16), 0
		err := b.SpliceIn(taking(p, &n))
		if err == nil && n == 0 {
			_, err = b.Read(t.Context(), p)
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

// TestAWriteBehindALostSpliceFails: what a move has failed with is the error of all writes.
func TestAWriteBehindALostSpliceFails(t *testing.T) {
	a, _ := plainPair(t)
	a.SpliceOut(func(int) error { return unix.ECONNRESET })
	if _, err := a.Write(t.Context(), []byte("x")); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("write: %v", err)
	}
	a.SpliceOut(func(int) error { t.Error("a move is called behind the loss"); return nil })
	stopped, _ := plainPair(t)
	stopped.Stop()
	stopped.SpliceOut(func(int) error { t.Error("a move is called behind Stop"); return nil })
	if _, err := stopped.Write(t.Context(), []byte("x")); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("write behind Stop: %v", err)
	}
}
