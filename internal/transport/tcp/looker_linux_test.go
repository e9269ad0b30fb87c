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

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/spin"
	"github.com/fabricd/fabricd/internal/transport"
)

// lowPair returns the two ends of a connection, and what looks at the first one with
// low latency.
func lowPair(t *testing.T) (here, there net.Conn, l *looker) {
	here, there = rawPair(t)
	l = new(looker)
	l.begin(here, true, new(atomic.Int64))
	return here, there, l
}

// A reader with low latency has what comes while it looks, however often nothing did.
func TestLowLatencyLooks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	here, there, l := lowPair(t)
	p := make([]byte, 16)
	look := func() (int, error) {
		l.sleeps = time.Time{} // whoever held it up
		return l.look(p)
	}
	for range 100 { // more waits than a budget would bear that see nothing
		if n, err := look(); n != 0 || err != nil {
			t.Fatalf("nothing has come: %d bytes, %v", n, err)
		}
	}
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	if n, err := look(); err != nil || !bytes.Equal(p[:n], []byte("word")) {
		t.Fatalf("%q, %v", p[:n], err)
	}
	if err := here.SetReadDeadline(longAgo); err != nil { // as who calls it away does
		t.Fatal(err)
	}
	if n, err := look(); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !isInterrupt(err) {
		t.Fatalf("called away: %d bytes, %v", n, err)
	}
	if err := here.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	if n, err := look(); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("the end: %d bytes, %v", n, err)
	}
}

// waitReadable waits until c's socket has something to read.
func waitReadable(t *testing.T, c net.Conn) {
	t.Helper()
	raw := rawConn(c)
	if raw == nil {
		t.Fatal("it is no socket")
	}
	n, err := 0, error(nil)
	if gone := raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	}); gone != nil || n != 1 || err != nil {
		t.Fatal(gone, n, err)
	}
}

// Sessions of a provider with low latency look at sockets that the runtime's poller does
// not watch, at both ends; others do neither on few processors.
func TestSessionsOfLowLatency(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for _, low := range []bool{false, true} {
		a, b := onSockets(t, func(c *Config) { c.LowLatency = low })
		dialed, err := a.Dial(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for end, one := range map[string]transport.Session{"dialed": dialed, "accepted": accepted} {
			s := one.(*session)
			_, quiet := s.rec.Conn.(*quietConn)
			if quiet != low || s.socket.looker.low != low || s.socket.looker.attempt != nil != low {
				t.Errorf("low %v, %s: quiet %v, looks %v", low, end, quiet, s.socket.looker.low)
			}
		}
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
		waitReadable(t, here)
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

// Who has woken a reader, or has not answered what came, lets goroutines run before it
// looks any longer: one of them has it now. Without either they have their turn in time.
func TestWhoeverIsWokenIsLetRun(t *testing.T) {
	here, there := rawPair(t)
	s := &session{rec: &recordConn{Conn: here, plain: true}, in: make([]byte, 3*(headerLen+maxSmall)), done: make(chan struct{}),
		p: &Provider{cfg: Config{LowLatency: true, LaneWindow: 1 << 20, SessionWindow: 1 << 20}}, company: &company{begun: time.Now()}}
	s.allowed.begin(uint64(s.p.cfg.SessionWindow))
	s.socket.begin(s)
	own, other := newRecvLane(s, 1), newRecvLane(s, 2)
	s.lanesIn = map[uint64]*recvLane{1: own, 2: other}
	answers := false
	own.take = func(p []byte) int {
		if answers {
			s.went()
		}
		return len(p)
	}
	l, now := &s.socket.looker, time.Now()
	for _, c := range []struct {
		name    string
		lane    *recvLane
		offered bool // to what the reader has brought
		answers bool
		later   bool // it is answered before it looks again
		late    bool // goroutines have not run for long
		runs    bool
	}{
		{name: "answered", lane: own, offered: true, answers: true},
		{name: "answered, after a while", lane: own, offered: true, answers: true, late: true, runs: true},
		{name: "taken, for whoever waits", lane: own, offered: true, runs: true},
		{name: "the holder's, who answers", lane: own, later: true},
		{name: "the holder's, who hands it on", lane: own, runs: true},
		{name: "another one's", lane: other, runs: true},
		{name: "another one's, and the holder says something", lane: other, later: true, runs: true},
	} {
		own.ready.Store(false)
		other.ready.Store(false)
		own.want, own.filled, answers = nil, 0, c.answers
		other.want, other.filled = make([]byte, 64), 0 // somebody waits there
		if c.offered {
			own.want = make([]byte, 8)
		}
		l.ran = now
		if c.late {
			l.ran = now.Add(-lowTurn)
		}
		frame := header{kind: typeData, length: 4, lane: c.lane.id, value: c.lane.asm.next}.appendTo(nil)
		if _, err := there.Write(append(frame, "word"...)); err != nil {
			t.Fatal(err)
		}
		waitReadable(t, here)
		var n int
		var err error
		if gone := s.socket.raw.Control(func(fd uintptr) { n, err = readNow(fd, s.unread()) }); gone != nil || err != nil {
			t.Fatal(gone, err)
		}
		s.came(n)
		if err := s.socket.handle(&own.hand); err != nil {
			t.Fatal(err)
		}
		if c.later {
			s.went()
		}
		began := now.Add(time.Nanosecond)
		l.giveWay(began)
		if ran := l.ran.Equal(began); s.end != s.start || ran != c.runs {
			t.Errorf("%s: %d bytes are left, goroutines run: %v", c.name, s.end-s.start, ran)
		}
		l.giveWay(began.Add(time.Nanosecond))
		if again := l.ran.After(began); again {
			t.Errorf("%s: goroutines run twice", c.name)
		}
		l.came = -1
	}
}

// One processor of the scheduler is left for who does not look.
func TestReadersLeaveAProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	here, there, l := lowPair(t)
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	p := make([]byte, 16)
	lookers.Add(1) // another one
	n, err := l.look(p)
	lookers.Add(-1)
	if n != 0 || err != nil {
		t.Errorf("one of two processors is taken: %d bytes, %v", n, err)
	}
	runtime.GOMAXPROCS(1)
	l.counted = time.Time{}
	if n, err := l.look(p); n != 0 || err != nil {
		t.Errorf("there is one processor: %d bytes, %v", n, err)
	}
	runtime.GOMAXPROCS(2)
	l.counted = time.Time{}
	if n, err := l.look(p); n != 4 || err != nil {
		t.Errorf("one of two is free: %d bytes, %v", n, err)
	}
	if n := lookers.Load(); n != 0 {
		t.Errorf("%d look, nobody does", n)
	}
}

// Who has given way to somebody who computes sleeps from then on, for a while.
func TestAReaderThatWasHeldUpSleeps(t *testing.T) {
	here, there, l := lowPair(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // whoever runs holds the reader up
	l.most, l.counted = 1, time.Now().Add(time.Hour)
	var looking atomic.Bool
	attempt := l.attempt
	l.attempt = func(fd uintptr) bool {
		looking.Store(true)
		return attempt(fd)
	}
	var other sync.WaitGroup
	other.Go(func() {
		for !looking.Load() {
			runtime.Gosched()
		}
		for begun := time.Now(); time.Since(begun) < 2*busyFor; {
			continue
		}
	})
	p := make([]byte, 16)
	if n, err := l.look(p); n != 0 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	other.Wait()
	if l.sleeps.IsZero() {
		t.Error("it was held up, and goes on looking")
	}
	if _, err := there.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, here)
	l.sleeps = time.Now().Add(time.Hour)
	if n, err := l.look(p); n != 0 || err != nil {
		t.Errorf("it sleeps, and reads %d bytes, %v", n, err)
	}
	l.sleeps = time.Time{}
	if n, err := l.look(p); n != 4 || err != nil {
		t.Errorf("it looks again, and reads %d bytes, %v", n, err)
	}
}

// What came in a turn of somebody else makes the next wait give way sooner.
func TestAReaderThatSharesGivesWaySooner(t *testing.T) {
	var l looker
	for i, c := range []struct {
		saw  bool
		turn time.Duration
		want int
	}{
		{true, 0, lowReads},
		{true, spin.Turn, sharedReads},
		{true, spin.Turn - 1, lowReads},
		{true, busyFor, sharedReads},
		{false, busyFor, lowReads},
	} {
		if l.ended(c.saw, c.turn); l.reads() != c.want {
			t.Errorf("wait %d: %d reads before the next turn, want %d", i, l.reads(), c.want)
		}
	}
}
