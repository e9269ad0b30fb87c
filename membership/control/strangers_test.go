package control

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// openings returns how many connections are not authenticated yet.
func (s *Server) openings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opening.Len()
}

// silence has strangers of count networks connect and send nothing. Those that come again do so when
// they are refused or evicted. It returns the function that ends them all.
func (b *bench) silence(count int, again bool) (end func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var all sync.WaitGroup
	for i := range count {
		from := fmt.Sprintf("172.%d.%d.1", 16+i/256, i%256)
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := b.net.Dial(ctx, from, hostAddress)
				if err != nil { // too many at once
					time.Sleep(time.Millisecond)
					continue
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_, _ = c.Read(make([]byte, 1))
				stop()
				c.Close()
				if !again {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	time.Sleep(400 * time.Millisecond)
	return func() {
		cancel()
		all.Wait()
	}
}

// session opens a session from 10.0.0.2 and ends it. It returns how long that took.
func (b *bench) session() time.Duration {
	b.t.Helper()
	began := time.Now()
	for time.Since(began) < 10*time.Second {
		s, err := b.dialer(endB).Session(b.t.Context(), hostAddress)
		if err == nil {
			s.Abort()
			(<-b.sessions).Abort()
			break
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// TestStrangersOfManyNetworksKeepNobodyOut has 300 networks hold a silent connection each, more
// than there are slots. A node that was not known before joins at once; one that was a member does,
// though the strangers come again as fast as they are ended.
func TestStrangersOfManyNetworksKeepNobodyOut(t *testing.T) {
	for name, again := range map[string]bool{"a stranger": false, "a member": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBench(t, func(c *Config) {
					c.Known = func(a netip.Addr) bool { return again && a == netip.MustParseAddr("10.0.0.2") }
				})
				defer b.close()
				end := b.silence(300, again)
				defer end()
				if n := b.server.openings(); n != openings.Total-openings.Reserved {
					t.Errorf("strangers hold %d slots, want %d", n, openings.Total-openings.Reserved)
				}
				if took := b.session(); took > 50*time.Millisecond {
					t.Errorf("it waited for its session for %v", took)
				}
			})
		})
	}
}

func TestRefusalsAreSummedUpInTheLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		b := newBench(t, func(c *Config) { c.Refused = func() { refused.Add(1) } })
		defer b.close()
		const count = 5000
		for range count {
			c := must(b.dial(t.Context(), hostAddress))
			c.Write([]byte("\x1b[2J\r\nforged line\r\n"))
			c.Close()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		log := b.log.String()
		if n := strings.Count(log, "\n"); n > 30 || len(log) > 8<<10 {
			t.Errorf("%d lines and %d bytes of log for %d refused connections", n, len(log), count)
		}
		if want := fmt.Sprintf("%d more connections were refused in the last minute, most from 10.0.0.2", count-20); !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
		if refused.Load() != count {
			t.Errorf("%d refusals are counted, want %d", refused.Load(), count)
		}
	})
}

// A session is not ended by a newcomer that wants the slot which it had before it
// was one.
func TestSessionsAreNotEvicted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		_, host, _, hostTap := b.pair()
		var conns []net.Conn
		for range 2 * openings.PerAddress {
			conns = append(conns, must(b.dial(t.Context(), hostAddress)))
		}
		time.Sleep(time.Second)
		select {
		case err := <-hostTap.down:
			t.Errorf("the session has ended: %v", err)
		default:
		}
		host.Abort()
		for _, c := range conns {
			c.Close()
		}
	})
}
