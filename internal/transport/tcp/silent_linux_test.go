package tcp

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// control runs f on the socket of c.
func control(t *testing.T, c net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil || inner != nil {
		t.Fatal(err, inner)
	}
}

// deafen makes the kernel drop whatever comes for c, as on a way that is cut: it
// acknowledges nothing, and hears no acknowledgement.
func deafen(t *testing.T, c net.Conn) {
	t.Helper()
	dropAll := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	control(t, c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll[0]})
	})
}

// TestBulkConnectionThatGoesSilent cuts the way of a bulk connection and of nothing
// else, where nobody gets an error: within the time of the configuration its bytes,
// those that a finished write has left in the kernel among them, come another way.
func TestBulkConnectionThatGoesSilent(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			const patience = 300 * time.Millisecond
			pa, pb := onSockets(t, func(c *Config) { c.Plaintext, c.UserTimeout, c.MaxBulk = plaintext, patience, 1 })
			sa, sb := transporttest.Connect(t, pa, pb)
			a, b := sa.(*session), sb.(*session)
			s, r := withBulk(t, a, b)
			for _, e := range []*session{a, b} {
				e.mu.Lock()
				conn := e.bulk.conns[0].conn
				e.mu.Unlock()
				deafen(t, conn)
			}
			data := random(21, 8<<20)
			done := make(chan error, 1)
			go func() {
				_, err := s.Write(data[:1<<20])
				if err == nil {
					_, err = s.Write(data[1<<20:])
				}
				if err == nil {
					err = s.Close()
				}
				done <- err
			}()
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d arrived, or others: %v", len(got), len(data), err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if a.Err() != nil || b.Err() != nil {
				t.Errorf("the session ended: %v, %v", a.Err(), b.Err())
			}
		})
	}
}

// TestSocketsAreTuned asks the kernel what it was told of each connection of a
// session.
func TestSocketsAreTuned(t *testing.T) {
	const patience = 1800 * time.Millisecond
	pa, pb := onSockets(t, func(c *Config) { c.UserTimeout = patience })
	sa, sb := transporttest.Connect(t, pa, pb)
	a, b := sa.(*session), sb.(*session)
	withBulk(t, a, b)
	for _, e := range []*session{a, b} {
		e.mu.Lock()
		bulk := e.bulk.conns[0].conn
		e.mu.Unlock()
		for name, conn := range map[string]net.Conn{"first": e.rec.Conn, "bulk": bulk} {
			control(t, conn, func(fd int) error {
				for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: int(patience.Milliseconds()), unix.TCP_THIN_LINEAR_TIMEOUTS: 1} {
					if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option); err != nil || got != want {
						t.Errorf("%s connection, dialed %v: option %d is %d, %v; want %d", name, e.dialed, option, got, err, want)
					}
				}
				// Before Linux 6.15 there is no such option.
				if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMin); err == nil && (got < leastWait || got > leastWait+10_000) { // in ticks
					t.Errorf("%s connection, dialed %v: sent again after %d µs at least, want %d", name, e.dialed, got, leastWait)
				}
				if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMax); err == nil && got != mostWait {
					t.Errorf("%s connection, dialed %v: sent again after %d ms at most, want %d", name, e.dialed, got, mostWait)
				}
				return nil
			})
		}
	}
}

// TestManyWritersLeaveTheBacklogBounded has many lanes write at once on a connection
// that takes nothing: each of them may have seen room, and together they may not fill
// more than there is, at which the session would end as that of a peer that does not
// read.
func TestManyWritersLeaveTheBacklogBounded(t *testing.T) {
	for _, c := range []struct {
		name         string
		lanes, bytes int
	}{{"lone writes", 60, 64 << 10}, {"frames", 200, maxSmall}} {
		t.Run(c.name, func(t *testing.T) {
			pa, pb := onSockets(t, func(cfg *Config) { cfg.MaxBulk, cfg.MaxLanes = -1, 256 })
			sa, sb := transporttest.Connect(t, pa, pb)
			a := sa.(*session)
			lanes := make([]*sendLane, c.lanes)
			for i := range lanes {
				s, r := transporttest.Lane(t, sa, sb)
				lanes[i] = s.(*sendLane)
				defer r.Cancel()
			}
			deafen(t, a.rec.Conn)
			deafen(t, sb.(*session).rec.Conn)
			var done atomic.Int64
			var writers sync.WaitGroup
			for _, l := range lanes {
				l.pace = pace{waits: calm}
				writers.Go(func() {
					_, _ = l.Write(make([]byte, c.bytes)) // it ends with the session
					done.Add(1)
				})
			}
			for settled := false; !settled; {
				time.Sleep(time.Millisecond) // until nobody gets any further
				a.mu.Lock()
				settled = a.err != nil || len(a.waiting)+int(done.Load()) == c.lanes
				a.mu.Unlock()
			}
			if err := a.Err(); err != nil {
				t.Errorf("the session ended: %v", err)
			}
			if n := a.out.backlog.Load(); n > maxBacklog+2*loneMax {
				t.Errorf("%d bytes wait for the socket", n)
			}
			sa.Close(0, "done")
			writers.Wait()
		})
	}
}
