package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/segment"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// segmentOf returns the largest segment that the kernel sends on c, in bytes.
func segmentOf(t *testing.T, c net.Conn) (bytes int) {
	t.Helper()
	control(t, c, func(fd int) (err error) {
		bytes, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		return err
	})
	return bytes
}

// checkSegments checks what all connections of a session send at most, at both ends.
func checkSegments(t *testing.T, a, b *session, least, most int) {
	t.Helper()
	for _, e := range []*session{a, b} {
		e.mu.Lock()
		bulk := e.bulk.conns[0].conn
		e.mu.Unlock()
		for name, conn := range map[string]net.Conn{"first": e.rec.Conn, "bulk": bulk} {
			if got := segmentOf(t, conn); got < least || got > most {
				t.Errorf("%s connection, dialed %v: segments of %d bytes, want %d to %d", name, e.dialed, got, least, most)
			}
		}
	}
}

const (
	loopback = "127.0.0.1" // whose segments are of 32 KiB and more
	jumbo    = standardSegment + 100
)

// A holedListener is at the end of a way on which large packets vanish. What has only
// small segments is spared: on loopback they come together, as one packet.
type holedListener struct {
	net.Listener
	segments chan int // of what is accepted
}

// newHoledListener listens on loopback. What is accepted inherits the filter.
func newHoledListener(t *testing.T) *holedListener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return loseLarge(raw) }}
	lc.SetMultipathTCP(false) // there are no filters for it
	l, err := lc.Listen(t.Context(), "tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	return &holedListener{l, make(chan int, 10)}
}

// loseLarge makes the kernel drop what comes for a socket in packets of more than 1,000
// bytes.
func loseLarge(raw syscall.RawConn) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: 1000, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
	return errors.Join(err, failed)
}

func (l *holedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var bytes int
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			bytes, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			if bytes <= segment.Small {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
			}
		})
	}
	select {
	case l.segments <- bytes:
	default: // more than a test looks at
	}
	return c, err
}

// TestHandshakeOverAWayThatLosesFullPackets: it gets stuck, and the same dial tries again
// with small segments, which all connections of its session have.
func TestHandshakeOverAWayThatLosesFullPackets(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			l := newHoledListener(t)
			providers := 0
			pa, pb := onSockets(t, func(c *Config) {
				if providers++; providers == 2 {
					c.Listener = l
				}
				c.Plaintext = plaintext
			})
			sa, sb := transporttest.Connect(t, pa, pb)
			withBulk(t, sa.(*session), sb.(*session))
			checkSegments(t, sa.(*session), sb.(*session), 1, segment.Small)
			if first, second := <-l.segments, <-l.segments; first < jumbo || second > segment.Small {
				t.Errorf("segments of %d bytes, then of %d: want full ones first", first, second)
			}
		})
	}
}

// TestHandshakeOfWhichTheAnswerIsLost: the server's hello and certificate are lost where
// they fill a packet, and the rest comes.
func TestHandshakeOfWhichTheAnswerIsLost(t *testing.T) {
	dials := 0
	pa, pb := onSockets(t, func(c *Config) {
		c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			dials++
			lossy := dials == 1
			d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
				if !lossy {
					return nil
				}
				segment.Bound(raw, standardSegment) // those of loopback would carry all at once
				return loseLarge(raw)
			}}
			return d.DialContext(ctx, "tcp", to)
		}
	})
	transporttest.Connect(t, pa, pb)
	if dials != 2 {
		t.Errorf("%d dials, want a second one when the first got stuck", dials)
	}
}

// TestHandshakesFillPackets: a handshake shows whether full packets pass, both ways.
func TestHandshakesFillPackets(t *testing.T) {
	const full = 1448 // of Ethernet, with IPv4 and time stamps
	ca := transporttest.NewAuthority(t)
	client, err := new(member(ca, idA)).clientTLS(ALPN)
	if err != nil {
		t.Fatal(err)
	}
	b := member(ca, idB)
	there, back := net.Pipe()
	defer there.Close()
	defer back.Close()
	first := make(chan int, 2)
	go func() { _ = tls.Client(firstWrite{there, first}, client).Handshake() }() // ends with the pipe
	go func() { _ = tls.Server(firstWrite{back, first}, b.serverTLS()).Handshake() }()
	for range 2 {
		if n := <-first; n <= full {
			t.Errorf("a hello of %d bytes, want more than %d", n, full)
		}
	}
}

// A firstWrite tells how long the first write was.
type firstWrite struct {
	net.Conn
	n chan int
}

func (c firstWrite) Write(p []byte) (int, error) {
	select {
	case c.n <- len(p):
	default:
	}
	return c.Conn.Write(p)
}

// TestSessionThatGetsStuck cuts a session's way where nobody gets an error. Its segments
// were larger than a handshake shows, so that the next one has those of an Ethernet, and
// is known to pass them.
func TestSessionThatGetsStuck(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			pa, pb := onSockets(t, func(c *Config) { c.Plaintext = plaintext })
			sa, sb := transporttest.Connect(t, pa, pb)
			a, b := sa.(*session), sb.(*session)
			s, _ := withBulk(t, a, b)
			checkSegments(t, a, b, jumbo, 1<<16)
			deafen(t, a.rec.Conn)
			deafen(t, b.rec.Conn)
			if _, err := s.Write(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			for { // until the kernel has tried again
				w, ok := infoOf(a.rec.Conn)
				if !ok || a.Err() != nil {
					t.Fatalf("the session ended: %v", a.Err())
				}
				if w.stuck(false) {
					break
				}
				time.Sleep(time.Millisecond)
			}
			sa.Close(0, "silent")
			sa, sb = transporttest.Connect(t, pa, pb)
			a, b = sa.(*session), sb.(*session)
			withBulk(t, a, b)
			checkSegments(t, a, b, segment.Small+1, standardSegment)
		})
	}
}

func TestSignsOfAWayThatLosesFullPackets(t *testing.T) {
	now := time.Unix(1e9, 0)
	full, large := segment.Small+1, jumbo
	for _, c := range []struct {
		what                string
		w                   way
		stalls, late, stuck bool
	}{
		{"a handshake that waits", way{segment: large}, false, false, false},
		{"what was sent last is on its way", way{segment: large, unheard: true}, false, false, false},
		{"sent in vain so far", way{segment: large, unheard: true, retries: vainRetries - 1}, false, true, false},
		{"all was heard in the end", way{segment: large, retries: vainRetries}, false, false, false},
		{"sent in vain", way{segment: full, unheard: true, retries: vainRetries}, true, true, false},
		{"sent in vain, large", way{segment: large, unheard: true, retries: vainRetries}, true, true, true},
		{"sent in vain, small", way{segment: segment.Small, unheard: true, retries: vainRetries}, false, false, false},
		{"a hole", way{segment: full, holed: true, began: now.Add(-holeTime)}, true, true, false},
		{"a hole that may be closed yet", way{segment: full, holed: true, began: now.Add(1 - holeTime)}, false, true, false},
		{"a hole of small packets", way{segment: segment.Small, holed: true}, false, false, false},
	} {
		if c.w.stalls(now) != c.stalls || c.w.late() != c.late || c.w.stuck(false) != c.stuck {
			t.Errorf("%s: stalls %v, late %v, stuck %v", c.what, c.w.stalls(now), c.w.late(), c.w.stuck(false))
		}
	}
	if !(way{segment: large}).stuck(true) || (way{segment: full}).stuck(true) {
		t.Error("want a session stuck that the kernel gave up, if its segments were large")
	}
	w := way{holed: true}.since(way{}, now)
	if w = (way{holed: true}).since(w, now.Add(1)); w.began != now {
		t.Errorf("a hole began at %v, want %v", w.began, now)
	}
	if w = (way{holed: true}).since(way{began: now}, now.Add(2)); w.began != now.Add(2) {
		t.Errorf("a second hole began at %v, want %v", w.began, now.Add(2))
	}
}

func TestNarrows(t *testing.T) {
	var n narrows
	now := time.Unix(1, 0)
	if n.get("h", now) != 0 {
		t.Error("the zero value knows a host")
	}
	n.add("h", 1000, now)
	n.add("h", 2000, now.Add(1))
	if last := now.Add(narrowFor); n.get("h", last) != 1000 || n.get("h", last.Add(1)) != 0 || n.get("g", now) != 0 {
		t.Error("want the lesser bound of one host, for a while after the last sign")
	}
	for i := range 2 * maxNarrow {
		n.add(fmt.Sprint(i), 1000, now)
	}
	n.add("h", 500, now)
	if len(n.of) != maxNarrow || n.get("h", now) != 500 {
		t.Errorf("%d hosts, want %d at most, and news of those that are known", len(n.of), maxNarrow)
	}
	late := now.Add(narrowFor + 1)
	n.add("late", 1000, late)
	if len(n.of) != 1 || n.get("late", late) != 1000 {
		t.Errorf("%d hosts after a while, want the new one", len(n.of))
	}
}
