package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// quietPair returns the two ends of a connection, both out of the runtime's poller.
func quietPair(t testing.TB) (here, there *quietConn) {
	t.Helper()
	a, b := rawPair(t)
	here, ok := quiet(a).(*quietConn)
	there, also := quiet(b).(*quietConn)
	if !ok || !also {
		t.Fatal("a connection of TCP stays in the poller")
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// A quiet connection does what net.Conn promises.
func TestQuietConnections(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		here, there := quietPair(t)
		return here, there, func() { here.Close(); there.Close() }, nil
	})
}

// Who sleeps is woken for each word, whichever comes first: the word or the sleep.
func TestNoWordIsLostAtAGate(t *testing.T) {
	here, there := quietPair(t)
	const words = 5000
	var echo sync.WaitGroup
	echo.Go(func() {
		p := make([]byte, 1)
		for range words {
			if _, err := io.ReadFull(there, p); err != nil {
				t.Error(err)
				return
			}
			if _, err := there.Write(p); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if err := here.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for i := range words {
		p := []byte{byte(i)}
		if _, err := here.Write(p); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(here, p); err != nil || p[0] != byte(i) {
			t.Fatalf("word %d: %d, %v", i, p[0], err)
		}
	}
	echo.Wait()
}

// Who sleeps where the kernel has no memory for that looks every now and then, and is
// called away and ended as everybody is; another refusal ends what it did.
func TestAGateWithoutMemory(t *testing.T) {
	here, there := quietPair(t)
	refusal, sleeps := unix.ENOSPC, make(chan struct{}, 1) // a token when somebody is about to sleep
	ctl := here.reads.ctl
	here.reads.ctl = func(set, op, socket int, ev *unix.EpollEvent) error {
		if op == unix.EPOLL_CTL_ADD {
			notify(sleeps)
			if refusal != 0 {
				return refusal
			}
		}
		return ctl(set, op, socket, ev)
	}
	p := make([]byte, 8)
	for _, lack := range []unix.Errno{unix.ENOSPC, unix.ENOMEM, 0} {
		refusal = lack
		if err := here.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := here.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: %v at the deadline", lack, err)
		}
		if err := here.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		<-sleeps // of the read before
		var writer sync.WaitGroup
		writer.Go(func() {
			<-sleeps
			if _, err := there.Write([]byte("word")); err != nil {
				t.Error(err)
			}
		})
		if n, err := here.Read(p); err != nil || string(p[:n]) != "word" {
			t.Errorf("%v: %q, %v", lack, p[:n], err)
		}
		writer.Wait()
	}
	refusal = unix.EBADF
	if _, err := here.Read(p); !errors.Is(err, unix.EBADF) {
		t.Errorf("a set that is none: %v", err)
	}
	for len(sleeps) > 0 {
		<-sleeps
	}
	refusal = unix.ENOSPC
	var reader sync.WaitGroup
	reader.Go(func() {
		if _, err := here.Read(p); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed meanwhile: %v", err)
		}
	})
	<-sleeps
	here.Close()
	reader.Wait()
}

// Nobody is told of what comes while nobody sleeps: a gate is shut behind who was let in.
func TestAGateIsShutWhileNobodySleeps(t *testing.T) {
	here, there := quietPair(t)
	opens := func() bool {
		var events [1]unix.EpollEvent
		n, err := 0, error(nil)
		if gone := here.reads.raw.Control(func(set uintptr) { n, err = unix.EpollWait(int(set), events[:], 0) }); gone != nil || err != nil {
			t.Fatal(gone, err)
		}
		return n > 0
	}
	if _, err := there.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	if opens() {
		t.Error("it is open before anybody has slept")
	}
	p := make([]byte, 8)
	if n, err := here.Read(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := here.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) { // it has slept
		t.Fatal(err)
	}
	if err := here.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Write([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if n, err := here.Read(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := there.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	if opens() {
		t.Error("it is open behind who was let in")
	}
}

// A writer waits for room, and the bytes come as they are.
func TestAQuietWriterWaitsForRoom(t *testing.T) {
	here, there := quietPair(t)
	want := make([]byte, 8<<20) // more than two sockets hold
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		if n, err := here.Write(want); n != len(want) || err != nil {
			t.Errorf("%d bytes written, %v", n, err)
		}
		if err := here.Close(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(there)
	writer.Wait()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes, %v", len(got), len(want), err)
	}
}

// Where there are no descriptors left a connection is as it was.
func TestQuietWithoutDescriptors(t *testing.T) {
	a, b := rawPair(t)
	starved := func(free int) net.Conn {
		restore, err := (&failpoint.Process{}).Starve(free)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := restore(); err != nil {
				t.Fatal(err)
			}
		}()
		return quiet(a)
	}
	for free := range 3 { // for none, for the socket, and for one gate
		if starved(free) != a {
			t.Fatalf("with %d descriptors it is another connection", free)
		}
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Read(make([]byte, 2)); n != 1 || err != nil {
			t.Fatalf("with %d descriptors: %d bytes, %v", free, n, err)
		}
	}
	c := starved(3)
	if c == a {
		t.Error("with three descriptors it stays in the poller")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
