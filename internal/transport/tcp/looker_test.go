package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
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
