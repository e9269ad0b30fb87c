//go:build linux && !portable

package path

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A ground is a connection whose dialer's end a node holds for an application. Its listener
// stays.
type ground struct {
	listener *net.TCPListener
	far      *net.TCPConn
	held     *Held // nil: the socket is not locked, for comparison
	app      *os.File
}

// grounds calls f for a connection over each IP that there is, and over IPv4 with sockets of IPv6.
func grounds(t *testing.T, locked bool, f func(t *testing.T, g *ground)) {
	for name, network := range map[string]struct{ listen, at, dial string }{
		"IPv4": {"tcp4", "127.0.0.1:0", "tcp4"}, "IPv6": {"tcp6", "[::1]:0", "tcp6"}, "mapped": {"tcp", "[::]:0", "mapped"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen(network.listen, network.at)
			if err != nil {
				if name == "IPv4" {
					t.Fatal(err)
				}
				t.Log("a machine without IPv6: ", err)
				return
			}
			t.Cleanup(func() { l.Close() })
			g := &ground{listener: l.(*net.TCPListener)}
			near := g.dial(t, network.dial)
			if g.far, err = g.listener.AcceptTCP(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.far.Close() })
			if !locked {
				g.app = fileOf(t, near)
			} else if g.held, err = Hold(near); err != nil {
				t.Fatal(err)
			} else if g.app, err = g.held.Duplicate(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.app.Close() })
			if locked && g.held.Unlocked() {
				g.held.Close()
				if os.Geteuid() == 0 {
					t.Error("the socket is not locked")
				}
				t.Log("this kernel lets a user without CAP_NET_ADMIN attach no filter")
				return
			}
			if g.held != nil {
				t.Cleanup(func() { g.held.Close() })
			}
			f(t, g)
		})
	}
}

// dial connects to the listener; mapped: over IPv4 with a socket of IPv6. No other connection
// of the machine has its port.
func (g *ground) dial(t *testing.T, network string) *net.TCPConn {
	t.Helper()
	to := g.listener.Addr().(*net.TCPAddr)
	if network != "mapped" {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: to.IP}}
		c, err := d.Dial(network, to.String())
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn)
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, sockaddr(fd, netip.AddrPortFrom(loopback, 0)))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(fd, netip.AddrPortFrom(loopback, uint16(to.Port))))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "mapped")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// sockaddr is an address for fd, mapped if that is a socket of IPv6.
func sockaddr(fd int, a netip.AddrPort) unix.Sockaddr {
	if domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// fd is the application's descriptor.
func (g *ground) fd() int { return int(g.app.Fd()) }

// own is the address of both ends.
func (g *ground) own() netip.Addr {
	return g.far.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// answered connects the disconnected socket, and reports whether an answer has come: a
// connection, or a refusal.
func (g *ground) answered(t *testing.T, to netip.AddrPort) bool {
	t.Helper()
	fd := g.fd()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	err := unix.Connect(fd, sockaddr(fd, to))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return true
	}
	events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(events, 300)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(events, 300)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// accepts has the disconnected socket listen, and reports whether a connection to it is made.
func (g *ground) accepts(t *testing.T) bool {
	t.Helper()
	fd := g.fd()
	if err := errors.Join(unix.Bind(fd, sockaddr(fd, netip.AddrPortFrom(g.own(), 0))), unix.Listen(fd, 8)); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(g.app)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err == nil {
		c.Close()
	}
	return err == nil
}

// ports returns a port with a listener, and one without.
func (g *ground) ports(t *testing.T) (open, shut netip.AddrPort) {
	t.Helper()
	var l [2]net.Listener
	for i := range l {
		var err error
		if l[i], err = net.Listen("tcp", netip.AddrPortFrom(g.own(), 0).String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l[i].Close() })
	}
	l[1].Close()
	return l[0].Addr().(*net.TCPAddr).AddrPort(), l[1].Addr().(*net.TCPAddr).AddrPort()
}

// TestAHeldSocketReachesNoOther: an application that disconnects the socket of a path gets no
// other connection with it, and no answer from a port. One that is not locked gets them.
func TestAHeldSocketReachesNoOther(t *testing.T) {
	for locked, name := range map[bool]string{true: "locked", false: "for comparison"} {
		t.Run(name, func(t *testing.T) {
			grounds(t, locked, func(t *testing.T, g *ground) {
				open, shut := g.ports(t)
				peer := netip.AddrPortFrom(g.own(), uint16(g.listener.Addr().(*net.TCPAddr).Port))
				port := g.far.RemoteAddr().(*net.TCPAddr).AddrPort().Port()
				disconnect(uintptr(g.fd()))
				if err := unix.Bind(g.fd(), sockaddr(g.fd(), netip.AddrPortFrom(g.own(), port))); err != nil { // the filter knows it
					t.Fatal(err)
				}
				all := []netip.AddrPort{peer, open, shut}
				if g.own().Is4() {
					all = append(all, netip.AddrPortFrom(g.own().Next(), peer.Port()))
				}
				for _, to := range all {
					if got := g.answered(t, to); got == locked {
						t.Errorf("%v (%v is the peer, %v is open) has answered: %v", to, peer, open, got)
					}
					disconnect(uintptr(g.fd()))
				}
				if g.held == nil {
					return
				}
				for _, option := range []int{unix.SO_DETACH_FILTER, unix.SO_LOCK_FILTER} {
					if err := unix.SetsockoptInt(g.fd(), unix.SOL_SOCKET, option, 0); !errors.Is(err, unix.EPERM) {
						t.Errorf("option %d: %v, want EPERM", option, err)
					}
				}
				keep := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}
				err := unix.SetsockoptSockFprog(g.fd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &keep})
				if !errors.Is(err, unix.EPERM) {
					t.Errorf("another filter: %v, want EPERM", err)
				}
			})
			grounds(t, locked, func(t *testing.T, g *ground) {
				disconnect(uintptr(g.fd()))
				if got := g.accepts(t); got == locked {
					t.Errorf("it accepts connections: %v", got)
				}
			})
		})
	}
}

// TestAHeldSocketCarriesItsPath: bulk data both ways, the peer's end, a reset of the peer and
// one of the node pass the lock.
func TestAHeldSocketCarriesItsPath(t *testing.T) {
	for _, reset := range []bool{false, true} {
		grounds(t, true, func(t *testing.T, g *ground) {
			near := connOf(t, g.app)
			defer near.Close()
			sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
			var work sync.WaitGroup
			for _, c := range []*net.TCPConn{near, g.far} {
				work.Go(func() {
					if _, err := c.Write(sent); err != nil {
						t.Error(err)
					}
				})
				work.Go(func() {
					got := make([]byte, len(sent))
					if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("%v has other bytes: %v", c.LocalAddr(), err)
					}
				})
			}
			work.Wait()
			near.SetReadDeadline(time.Now().Add(10 * time.Second))
			g.far.SetReadDeadline(time.Now().Add(10 * time.Second))
			if !reset {
				g.far.CloseWrite()
				if b, err := io.ReadAll(near); err != nil || len(b) > 0 {
					t.Errorf("behind the peer's end: %q, %v", b, err)
				}
				f, err := g.held.Take()
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				Reset(f)
				if _, err := g.far.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("behind the node's reset the peer reads %v", err)
				}
				return
			}
			g.far.SetLinger(0)
			g.far.Close()
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("behind the peer's reset: %v", err)
			}
		})
	}
}

// TestASocketThatCannotBeLockedIsNotHeld: the subflows of Multipath TCP have no filter.
func TestASocketThatCannotBeLockedIsNotHeld(t *testing.T) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(true)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	d.SetMultipathTCP(true)
	near, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	multi, err := far.(*net.TCPConn).MultipathTCP()
	if err != nil {
		t.Fatal(err)
	}
	h, err := Hold(far.(*net.TCPConn))
	if h != nil {
		h.Close()
	}
	if multi != (err != nil) {
		t.Errorf("Multipath TCP: %v; it is held: %v", multi, err)
	}
}
