package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// segment returns the largest segment that the kernel sends on c, in bytes.
func segment(t *testing.T, c net.Conn) (bytes int) {
	t.Helper()
	control(t, c, func(fd int) (err error) {
		bytes, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		return err
	})
	return bytes
}

// checkSegments checks what all connections of a session send, at both of its ends.
func checkSegments(t *testing.T, a, b *session, small bool) {
	t.Helper()
	for _, e := range []*session{a, b} {
		e.mu.Lock()
		bulk := e.bulk.conns[0].conn
		e.mu.Unlock()
		for name, conn := range map[string]net.Conn{"first": e.rec.Conn, "bulk": bulk} {
			if got := segment(t, conn); (got <= narrowSegment) != small {
				t.Errorf("%s connection, dialed %v: segments of %d bytes, want small ones: %v", name, e.dialed, got, small)
			}
		}
	}
}

const loopback = "127.0.0.1"

// TestWayThatLosesWhatIsSent cuts a session's way where nobody gets an error. The next
// one has small segments in both directions, whatever its connections are for, and
// those that follow when there is no doubt any more have full ones.
func TestWayThatLosesWhatIsSent(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			pa, pb := onSockets(t, func(c *Config) { c.Plaintext = plaintext })
			sa, sb := transporttest.Connect(t, pa, pb)
			a, b := sa.(*session), sb.(*session)
			s, _ := withBulk(t, a, b)
			checkSegments(t, a, b, false)
			deafen(t, a.rec.Conn)
			deafen(t, b.rec.Conn)
			if _, err := s.Write(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			for !vanishing(a.rec.Conn) {
				time.Sleep(time.Millisecond) // until the kernel has tried again
			}
			sa.Close(0, "silent")
			sb.Close(0, "silent")
			for !pa.doubts.of(loopback, time.Now()) {
				time.Sleep(time.Millisecond) // until the session is over
			}

			sa, sb = transporttest.Connect(t, pa, pb)
			a, b = sa.(*session), sb.(*session)
			pa.doubts.drop(loopback) // its bulk connections come of the session
			withBulk(t, a, b)
			checkSegments(t, a, b, true)

			sa, sb = transporttest.Connect(t, pa, pb)
			withBulk(t, sa.(*session), sb.(*session))
			checkSegments(t, sa.(*session), sb.(*session), false)
		})
	}
}

// TestHandshakeThatStalls dials somebody who takes connections and says nothing: what
// it would have said may have been too large for the way. Where not even a connection
// comes about there is no such doubt.
func TestHandshakeThatStalls(t *testing.T) {
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, _ := onSockets(t, func(c *Config) { c.HandshakeTimeout = 50 * time.Millisecond })
	for i, small := range []bool{false, true} {
		if _, err := p.Dial(t.Context(), l.Addr().String()); err == nil {
			t.Fatal("a session with nobody")
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := segment(t, c); (got <= narrowSegment) != small {
			t.Errorf("dial %d: segments of %d bytes, want small ones: %v", i, got, small)
		}
		c.Close()
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Dial(canceled, l.Addr().String()); !errors.Is(err, context.Canceled) || !p.doubts.of(loopback, time.Now()) {
		t.Errorf("%v: a dial that was given up says nothing of the way", err)
	}
	l.Close()
	if _, err := p.Dial(t.Context(), l.Addr().String()); err == nil || p.doubts.of(loopback, time.Now()) {
		t.Errorf("%v: nobody listens, and the way is doubted", err)
	}
}

func TestDoubts(t *testing.T) {
	var d doubts
	now := time.Unix(1, 0)
	if d.of("h", now) {
		t.Error("the zero value doubts a host")
	}
	d.drop("h")
	d.add("h", now)
	if !d.of("h", now.Add(narrowFor-1)) || d.of("h", now.Add(narrowFor)) || d.of("g", now) {
		t.Error("want doubts of one host, for a while")
	}
	for i := range 2 * maxDoubts {
		d.add(fmt.Sprint(i), now)
	}
	if len(d.until) != maxDoubts {
		t.Errorf("%d hosts are doubted, want %d at most", len(d.until), maxDoubts)
	}
	d.add("late", now.Add(narrowFor+1))
	if len(d.until) != 1 || !d.of("late", now.Add(narrowFor+1)) {
		t.Errorf("%d hosts are doubted after a while, want the new one", len(d.until))
	}
}
