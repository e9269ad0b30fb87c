package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lowPair returns the two ends of a connection, and what looks at the first one with
// low latency.
func lowPair(t *testing.T) (here, there net.Conn, l *looker) {
	here, there = rawPair(t)
	l = new(looker)
	l.begin(here, true)
	return here, there, l
}

// A reader with low latency has what comes while it looks, whatever the machine.
func TestLowLatencyLooks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	here, there, l := lowPair(t)
	p := make([]byte, 16)
	if n, err := l.look(p); n != 0 || err != nil {
		t.Fatalf("nothing has come: %d bytes, %v", n, err)
	}
	for range 100 { // more waits than a budget would bear that see nothing
		if n, err := l.look(p); n != 0 || err != nil {
			t.Fatalf("nothing has come: %d bytes, %v", n, err)
		}
	}
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if n, err := l.look(p); err != nil || !bytes.Equal(p[:n], []byte("word")) {
		t.Fatalf("%q, %v", p[:n], err)
	}
	if err := here.SetReadDeadline(longAgo); err != nil { // as who calls it away does
		t.Fatal(err)
	}
	if n, err := l.look(p); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !isInterrupt(err) {
		t.Fatalf("called away: %d bytes, %v", n, err)
	}
	if err := here.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := l.look(p); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("the end: %d bytes, %v", n, err)
	}
}

// What comes to a reader that has slept is followed by a look: who answers a stream of
// questions sleeps before the first of them only.
func TestWhoWasWokenLooksAgain(t *testing.T) {
	for _, low := range []bool{false, true} {
		here, there := rawPair(t)
		s := &session{rec: &recordConn{Conn: here, plain: true}, in: make([]byte, 3*(headerLen+maxSmall)), p: &Provider{cfg: Config{LowLatency: low}}}
		s.socket.begin(s)
		half := header{kind: typeDatagram, length: 8}.appendTo(nil)[:4] // nothing to handle yet
		if _, err := there.Write(half); err != nil {
			t.Fatal(err)
		}
		var back bool
		s.socket.holder = &hand{}
		if err := s.socket.raw.Control(func(fd uintptr) { back = s.socket.empty(fd) }); err != nil {
			t.Fatal(err)
		}
		if back != low || s.end != len(half) || s.socket.waits.Load() == low {
			t.Errorf("low %v: comes back %v, with %d bytes, waits %v", low, back, s.end, s.socket.waits.Load())
		}
	}
}

// One processor of the scheduler is left for who does not look.
func TestReadersLeaveAProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	_, there, l := lowPair(t)
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 16)
	lookers.Add(1) // another one
	n, err := l.look(p)
	lookers.Add(-1)
	if n != 0 || err != nil {
		t.Errorf("one of two processors is taken: %d bytes, %v", n, err)
	}
	if n, err := l.look(p); n != 4 || err != nil {
		t.Errorf("it is free again: %d bytes, %v", n, err)
	}
	runtime.GOMAXPROCS(1)
	_, there, l = lowPair(t)
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if n, err := l.look(p); n != 0 || err != nil {
		t.Errorf("there is one processor: %d bytes, %v", n, err)
	}
	if n := lookers.Load(); n != 0 {
		t.Errorf("%d look, nobody does", n)
	}
}

// Who has given way to somebody who computes sleeps from then on, for a while.
func TestAReaderThatWasHeldUpSleeps(t *testing.T) {
	_, there, l := lowPair(t)
	l.most = 1
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // whoever runs holds the reader up
	var computed atomic.Bool
	var other sync.WaitGroup
	other.Go(func() {
		for begun := time.Now(); time.Since(begun) < 2*busyFor; {
			continue
		}
		computed.Store(true)
	})
	p := make([]byte, 16)
	if n, err := l.look(p); n != 0 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	other.Wait()
	if !computed.Load() || !l.sleeps.After(time.Now()) {
		t.Errorf("it was held up and sleeps until %v from now", time.Until(l.sleeps))
	}
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if n, err := l.look(p); n != 0 || err != nil {
		t.Errorf("it sleeps, and reads %d bytes, %v", n, err)
	}
	l.sleeps = time.Now()
	if n, err := l.look(p); n != 4 || err != nil {
		t.Errorf("it looks again, and reads %d bytes, %v", n, err)
	}
}
