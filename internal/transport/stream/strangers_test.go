package stream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// silent opens a connection from an address and sends nothing.
func (r *rig) silent(from string) net.Conn {
	r.Helper()
	c, err := r.network.Dial(r.Context(), from, addrB)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	synctest.Wait()
	return c
}

// open reports whether the provider has not closed c.
func (r *rig) open(c net.Conn) bool {
	r.Helper()
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// TestStrangersShareTheHandshakes: neither one address nor one network, nor many of them, block
// peers that hold fewer, or known ones.
func TestStrangersShareTheHandshakes(t *testing.T) {
	for name, c := range map[string]struct {
		from  func(i int) string // of the i-th silent connection
		known bool
		open  int // of 64 silent connections
		after int // of those, when a peer of another network has come
	}{
		"one address":   {func(int) string { return "10.9.9.1" }, false, 8, 8},
		"one network":   {func(i int) string { return fmt.Sprintf("10.9.9.%d", i%16) }, false, 12, 12},
		"two networks":  {func(i int) string { return fmt.Sprintf("10.9.%d.%d", i%2, i%16) }, false, 24, 23},
		"many networks": {func(i int) string { return fmt.Sprintf("10.9.%d.1", i) }, false, 24, 23},
		"known":         {func(i int) string { return fmt.Sprintf("10.9.%d.1", i) }, true, 24, 24},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(cfg *Config) {
				cfg.MaxHandshakes, cfg.HandshakeTimeout = 32, time.Minute
				cfg.Known = func(a netip.Addr) bool { return c.known && a == netip.MustParseAddr("10.0.0.1") }
			}
			hostile(t, change, func(r *rig) {
				var all []net.Conn
				for i := range 64 {
					all = append(all, r.silent(c.from(i)))
				}
				count := func() (n int) {
					for _, conn := range all {
						if r.open(conn) {
							n++
						}
					}
					return n
				}
				if n := count(); n != c.open {
					t.Errorf("%d silent connections are open, want %d", n, c.open)
				}
				newcomer := r.silent("10.0.0.1")
				if !r.open(newcomer) {
					t.Error("a newcomer was kept out")
				}
				if n := count(); n != c.after {
					t.Errorf("with the newcomer %d silent connections are open, want %d", n, c.after)
				}
				newcomer.Close()
				synctest.Wait()
				r.session(ownHello) // in its place
				if n := strings.Count(r.log.String(), "\n"); n > 25 {
					t.Errorf("%d lines were logged", n)
				}
			})
		})
	}
}

// TestAPeersReasonIsPrintable: it ends up in logs and terminals.
func TestAPeersReasonIsPrintable(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		c, s := r.session(ownHello)
		const reason = "\x1b[2J\r\nroot# \xff"
		r.write(c, muxBytes(0, controlID, appendClose(nil, &transport.CloseError{Reason: reason})))
		<-s.Done()
		if got := s.Err().Error(); !strings.HasSuffix(got, `\x1b[2J\r\nroot# \xff`) {
			t.Errorf("the session ended with %q", got)
		}
	})
}
