package path

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sockets returns the two ends of a TCP connection on loopback, as descriptors.
func sockets(t testing.TB) (a, b *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return fileOf(t, near), fileOf(t, far)
}

func fileOf(t testing.TB, c net.Conn) *os.File {
	t.Helper()
	defer c.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newKey(t testing.TB) *Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// pair returns the two ends of a path.
func pair(t testing.TB, plaintext bool) (a, b *Conn) {
	t.Helper()
	fa, fb := sockets(t)
	ka, kb := newKey(t), newKey(t)
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		a, errs[0] = New(t.Context(), fa, Options{Client: true, Plaintext: plaintext, Key: ka, Peer: kb.Hash(), Changed: func() {}})
	})
	wg.Go(func() {
		b, errs[1] = New(t.Context(), fb, Options{Plaintext: plaintext, Key: kb, Peer: ka.Hash(), Changed: func() {}})
	})
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func forms(t *testing.T, f func(t *testing.T, plaintext bool)) {
	for _, plaintext := range []bool{false, true} {
		t.Run(map[bool]string{false: "tls", true: "plaintext"}[plaintext], func(t *testing.T) { f(t, plaintext) })
	}
}

func await(t testing.TB, c *Conn, want uint64) {
	t.Helper()
	<-c.Started()
	if start, ok := c.Start(); !ok || start != want {
		t.Fatalf("the peer's direction begins at %d, %v; want %d", start, ok, want)
	}
}

// Whatever the calls on both sides are, the bytes are those that were written, in
// order, and then comes the end.
func TestBytesArriveInOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		r := rand.New(rand.NewPCG(seed, 1))
		sent := make([]byte, 3<<20)
		for i := range sent {
			sent[i] = byte(r.Uint32())
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := writeRandomly(a, sent, rand.New(rand.NewPCG(seed, 2))); err != nil {
				t.Error(err)
			}
		})
		await(t, b, 17)
		got, err := readRandomly(t.Context(), b, rand.New(rand.NewPCG(seed, 3)))
		wg.Wait()
		if err != io.EOF || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes, then %v; want %d and the end", len(got), err, len(sent))
		}
	})
}

// writeRandomly writes p by all calls there are; one in eight ends early.
func writeRandomly(c *Conn, p []byte, r *rand.Rand) error {
	c.Begin(17)
	for len(p) > 0 {
		k := min(len(p), 1+r.IntN(1<<(1+r.IntN(19))))
		var n int
		var err error
		switch r.IntN(8) {
		case 0:
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(300))*time.Microsecond)
			n, err = c.Write(ctx, p[:k])
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				err = nil
			}
			cancel()
		case 1, 2, 3:
			n, err = c.TryWrite(p[:k])
		default:
			n, err = c.Write(context.Background(), p[:k])
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return c.Finish(context.Background())
}

func readRandomly(ctx context.Context, c *Conn, r *rand.Rand) (got []byte, err error) {
	for {
		p := make([]byte, 1+r.IntN(1<<(1+r.IntN(18))))
		var n int
		switch r.IntN(4) {
		case 0:
			n, err = c.TryRead(p)
		case 1:
			short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Microsecond)
			n, err = c.Read(short, p)
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			cancel()
		default:
			n, err = c.Read(ctx, p)
		}
		got = append(got, p[:n]...)
		if err != nil {
			return got, err
		}
	}
}

// Bytes that TLS has buffered are readable, although the socket has none.
func TestWhatIsBufferedIsReady(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		if _, err := a.Write(t.Context(), []byte("one record")); err != nil {
			t.Fatal(err)
		}
		await(t, b, 0)
		for want := 10; want > 0; want-- {
			for in := false; !in; in, _, _ = b.Ready() { // until it has arrived
			}
			if n, err := b.TryRead(make([]byte, 1)); n != 1 || err != nil {
				t.Fatalf("%d bytes are left: %d, %v", want, n, err)
			}
		}
		if in, out, _ := b.Ready(); in || !out {
			t.Errorf("nothing is left: ready %v, %v", in, out)
		}
		if n, err := b.TryRead(make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("nothing is left: %d, %v", n, err)
		}
	})
}

// A peer that does not read stops the sender; accepted bytes are written without a call.
func TestTryWriteStopsAndGoesOn(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		sent := 0
		for range 3 {
			for {
				n, err := a.TryWrite(make([]byte, 1<<20))
				if err != nil {
					t.Fatal(err)
				}
				if sent += n; n == 0 {
					break
				}
			}
		}
		await(t, b, 0)
		got := 0
		for got < sent {
			n, err := b.Read(t.Context(), make([]byte, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		for out := false; !out; _, out, _ = a.Ready() { // the last of it is on its way
		}
	})
}

// withRest returns the two ends of a path, how many bytes a has written, and what End has
// returned of them: b has read nothing. Where the kernel has made room meanwhile, it tries again.
func withRest(t *testing.T, plaintext bool) (a, b *Conn, sent int, rest []byte) {
	t.Helper()
	for range 20 {
		a, b = pair(t, plaintext)
		a.sock.tcp.SetWriteBuffer(4 << 10) // these fail only on a socket that has ended
		b.sock.tcp.SetReadBuffer(4 << 10)
		a.Begin(0)
		sent = 0
		for n := 1; n > 0; sent += n {
			var err error
			if n, err = a.TryWrite(make([]byte, 16<<10)); err != nil {
				t.Fatal(err)
			}
		}
		await(t, b, 0)
		a.Interrupt()
		var err error
		if rest, err = a.End(); err != nil || len(rest) > RestMost {
			t.Fatalf("the rest is %d bytes, %v", len(rest), err)
		}
		if len(rest) > 0 {
			return a, b, sent, rest
		}
	}
	t.Fatal("a socket without a reader takes all bytes")
	return nil, nil, 0, nil
}

// readsAll checks that b reads so many bytes, and then the end.
func readsAll(t *testing.T, b *Conn, want int) {
	t.Helper()
	got, p, n, err := 0, make([]byte, 1<<20), 0, error(nil)
	for err == nil {
		n, err = b.Read(t.Context(), p)
		got += n
	}
	if got != want || err != io.EOF {
		t.Errorf("%d bytes, %v; want %d and the end", got, err, want)
	}
}

// TestASocketThatBlocksHoldsUpNothing: an application that makes the socket of its closed path
// block cannot keep the node in a call beyond the deadline.
func TestASocketThatBlocksHoldsUpNothing(t *testing.T) {
	node, peer := sockets(t)
	defer node.Close()
	defer peer.Close()
	fd := int(node.Fd()) // the application's descriptor
	nonblock := func(is bool) {
		if err := unix.SetNonblock(fd, is); err != nil {
			t.Fatal(err)
		}
	}
	nonblock(true)
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(dup), "path")
	defer f.Close()
	nonblock(false)
	f.SetDeadline(time.Now().Add(50 * time.Millisecond))
	if err := SendRest(f, make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write of more than there is room for: %v", err)
	}
	looks := 0
	Discard(f, func() bool { looks++; return true })
	if looks != 1 {
		t.Errorf("%d reads of nothing before the deadline", looks)
	}
}

// TestARestThatTheApplicationHasWritten: where it has ended its direction itself the node's copy
// of the rest is dropped, and destroys nothing that is on its way.
func TestARestThatTheApplicationHasWritten(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		n, err := a.Write(t.Context(), make([]byte, 100<<10))
		if err != nil {
			t.Fatal(err)
		}
		node, err := a.sock.tcp.File()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if err := SendRest(node, []byte("again")); err != nil {
			t.Error(err)
		}
		node.Close()
		await(t, b, 0)
		readsAll(t, b, n)
	})
}

// TestEndWaitsForNobody: End returns what the socket of a peer that does not read has no room
// for. The peer reads all bytes, and the end, after another process has written that.
func TestEndWaitsForNobody(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b, sent, rest := withRest(t, plaintext)
		node, err := a.sock.tcp.File()
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		done := make(chan error, 1)
		go func() { done <- SendRest(node, rest); node.Close() }()
		readsAll(t, b, sent)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAnEndThatIsNotThePeersIsNone: behind a shutdown at this machine bytes may be missing.
func TestAnEndThatIsNotThePeersIsNone(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		if _, err := a.Write(t.Context(), []byte("before")); err != nil {
			t.Fatal(err)
		}
		await(t, b, 0)
		p := make([]byte, 6)
		if n, err := b.Read(t.Context(), p); n != len(p) || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		b.Shutdown()
		if n, err := b.Read(t.Context(), p); n != 0 || err == nil || err == io.EOF {
			t.Errorf("%d bytes, %v; want an error that is no end", n, err)
		}
	})
}

// TestAFinishFollowsAnEnd: a rest that nobody took is written by FinishRest.
func TestAFinishFollowsAnEnd(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b, sent, rest := withRest(t, plaintext)
		done := make(chan error, 1)
		go func() { done <- a.FinishRest(t.Context(), rest) }()
		readsAll(t, b, sent)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOtherKeysAreRefused(t *testing.T) {
	ka, kb, other := newKey(t), newKey(t), newKey(t)
	for _, tt := range []struct {
		name           string
		client, server Hash
	}{
		{"the client expects another", other.Hash(), ka.Hash()},
		{"the server expects another", kb.Hash(), other.Hash()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fa, fb := sockets(t)
			var errs [2]error
			var conns [2]*Conn
			var wg sync.WaitGroup
			wg.Go(func() {
				conns[0], errs[0] = New(t.Context(), fa, Options{Client: true, Key: ka, Peer: tt.client, Changed: func() {}})
			})
			wg.Go(func() {
				conns[1], errs[1] = New(t.Context(), fb, Options{Key: kb, Peer: tt.server, Changed: func() {}})
			})
			wg.Wait()
			for i, err := range errs {
				if err == nil {
					t.Errorf("end %d took it", i)
					conns[i].Close()
				}
			}
		})
	}
}

// A process that does not speak ends nothing but the wait.
func TestHandshakeEndsWithItsContext(t *testing.T) {
	fa, fb := sockets(t)
	defer fb.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := New(ctx, fa, Options{Client: true, Key: newKey(t), Changed: func() {}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's end", err)
	}
}

// Bytes that arrived before a shutdown can be read, and no later byte can.
func TestShutdownLeavesWhatHasArrived(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(5)
		if _, err := a.Write(t.Context(), []byte("before")); err != nil {
			t.Fatal(err)
		}
		await(t, b, 5)
		for in := false; !in; in, _, _ = b.Ready() {
		}
		b.Shutdown()
		got := make([]byte, 100)
		n, err := b.Read(t.Context(), got)
		if string(got[:n]) != "before" {
			t.Fatalf("%q, %v", got[:n], err)
		}
		if n, err := b.Read(t.Context(), got); n != 0 || err == nil {
			t.Errorf("after it %d bytes, %v", n, err)
		}
		if _, err := b.Write(t.Context(), []byte("x")); err == nil {
			t.Error("a write went through")
		}
		for err = nil; err == nil; _, err = a.Write(t.Context(), make([]byte, 1000)) { // until the peer's kernel answers
		}
	})
}

// Bytes that the peer sent before it closed can be read, although this end's pending bytes
// cannot be sent any more.
func TestReadingOutlivesWriting(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		if _, err := a.Write(t.Context(), []byte("before")); err != nil {
			t.Fatal(err)
		}
		await(t, b, 0)
		b.sock.tcp.CloseWrite() // as the node does when the peer has closed
		b.seal([]byte("left behind"))
		got := make([]byte, 100)
		if n, err := b.Read(t.Context(), got); string(got[:n]) != "before" {
			t.Errorf("%q, %v", got[:n], err)
		}
		if err := b.flush(t.Context()); err == nil {
			t.Error("what cannot go out is no error of a write")
		}
	})
}

// In steady state a message costs no memory, but for the allocations of crypto/tls for each record
// that it waits for.
func TestMessagesAllocateNothing(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		msg, got := make([]byte, 64), make([]byte, 64)
		ctx := context.Background()
		once := func() {
			if _, err := a.Write(ctx, msg); err != nil {
				t.Fatal(err)
			}
			for n := 0; n < len(msg); {
				k, err := b.Read(ctx, got[n:])
				if n += k; err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := a.Write(context.Background(), msg); err != nil {
			t.Fatal(err)
		}
		await(t, b, 0)
		if _, err := b.Read(context.Background(), got); err != nil {
			t.Fatal(err)
		}
		most := 0.0
		if !plaintext {
			most = 1
		}
		for name, c := range map[string]context.Context{"none": context.Background(), "one that can end": t.Context()} {
			ctx = c
			if n := testing.AllocsPerRun(200, once); n > most && !raceEnabled {
				t.Errorf("with the context %s %v allocations for a message, want %v at most", name, n, most)
			}
		}
	})
}

func TestGreeting(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	want := NewToken()
	ended := make(chan error)
	go func() { ended <- Greet(a, want) }()
	got, err := ReadGreeting(b)
	if err != nil || got != want {
		t.Fatalf("%x, %v; want %x", got, err, want)
	}
	if err := Accept(b); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	go func() { ended <- Greet(a, want) }()
	if _, err := ReadGreeting(b); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := <-ended; !errors.Is(err, ErrRefused) {
		t.Errorf("%v, want %v", err, ErrRefused)
	}
}

func FuzzReadGreeting(f *testing.F) {
	token := NewToken()
	f.Add(append([]byte{First, version}, token[:]...))
	f.Add([]byte{First, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		token, err := ReadGreeting(bytes.NewReader(b))
		if err == nil && !bytes.Equal(append([]byte{First, version}, token[:]...), b[:GreetingLen]) {
			t.Errorf("% x is % x", b, token)
		}
	})
}

func BenchmarkEcho(b *testing.B) {
	for _, plaintext := range []bool{false, true} {
		b.Run(fmt.Sprintf("path/plaintext=%v", plaintext), func(b *testing.B) {
			x, y := pair(b, plaintext)
			x.Begin(0)
			y.Begin(0)
			_, _ = x.Write(b.Context(), nil)
			x.flush(b.Context())
			y.flush(b.Context())
			await(b, y, 0)
			await(b, x, 0)
			go echo(y)
			buf := make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				x.Write(context.Background(), buf)
				x.Read(context.Background(), buf)
			}
			x.Shutdown()
		})
	}
	b.Run("crypto/tls", func(b *testing.B) {
		x, y := bare(b)
		go io.Copy(y, y)
		buf := make([]byte, 8)
		b.ReportAllocs()
		for b.Loop() {
			x.Write(buf)
			io.ReadFull(x, buf)
		}
	})
}

func echo(c *Conn) {
	buf := make([]byte, 8)
	for {
		n, err := c.Read(context.Background(), buf)
		if err != nil {
			return
		}
		c.Write(context.Background(), buf[:n])
	}
}

func bare(b *testing.B) (x, y net.Conn) {
	fa, fb := sockets(b)
	na, _ := net.FileConn(fa)
	nb, _ := net.FileConn(fb)
	k := newKey(b)
	x, y = tls.Client(na, &tls.Config{InsecureSkipVerify: true}), tls.Server(nb, &tls.Config{Certificates: []tls.Certificate{k.cert}})
	done := make(chan struct{})
	go func() { y.(*tls.Conn).Handshake(); close(done) }()
	if err := x.(*tls.Conn).Handshake(); err != nil {
		b.Fatal(err)
	}
	<-done
	b.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}

func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		p := make([]byte, size)
		b.Run(fmt.Sprintf("path/%d", size), func(b *testing.B) {
			x, y := pair(b, false)
			x.Begin(0)
			x.flush(b.Context())
			await(b, y, 0)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, size)
				for {
					if _, err := y.Read(context.Background(), buf); err != nil {
						return
					}
				}
			}()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				x.Write(context.Background(), p)
			}
			x.Finish(b.Context())
			<-done
		})
		b.Run(fmt.Sprintf("crypto-tls/%d", size), func(b *testing.B) {
			x, y := bare(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, size)
				for {
					if _, err := y.Read(buf); err != nil {
						return
					}
				}
			}()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				x.Write(p)
			}
			x.Close()
			<-done
		})
	}
}

// TestAHalfMadePathEndsInOrder: an end that gives up behind its binding, which the other end
// may take for good, ends as one that has sent nothing.
func TestAHalfMadePathEndsInOrder(t *testing.T) {
	fa, fb := sockets(t)
	ka, kb := newKey(t), newKey(t)
	end, err := newSocket(fb)
	if err != nil {
		t.Fatal(err)
	}
	defer end.tcp.Close()
	peer := &Conn{sock: end, wait: true, changed: func() {}, flushing: make(chan struct{}, 1)}
	peer.flushing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made := make(chan error, 1)
	go func() {
		_, err := New(ctx, fa, Options{Client: true, Key: ka, Peer: kb.Hash(), Changed: func() {}})
		made <- err
	}()
	if err := errors.Join(peer.secure(Options{Key: kb, Peer: ka.Hash()}), peer.awaitReady(Binding{})); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-made; !errors.Is(err, ErrHalf) || !errors.Is(err, context.Canceled) {
		t.Errorf("a path that is given up: %v", err)
	}
	if n, err := peer.readSealed(make([]byte, 8)); n != 0 || err != io.EOF {
		t.Errorf("behind the binding come %d bytes, %v; want the end alone", n, err)
	}
}
