package netsim

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/fabricd/fabricd/internal/wait"
)

// backlogConns bounds the streams that wait for Accept. Further dials are
// refused.
const backlogConns = 128

// A Listener accepts streams on one address. It implements net.Listener.
type Listener struct {
	net  *Network
	at   netip.AddrPort
	addr *net.TCPAddr

	// The network's lock guards the fields below.
	closed  bool
	backlog []*Conn
	changed wait.Broadcast
}

// Listen opens a listener at address, "ip:port"; port 0 chooses one.
func (n *Network) Listen(address string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := n.place("tcp", address, func(at netip.AddrPort) bool { return n.listeners[at] != nil })
	if err != nil {
		return nil, err
	}
	l := &Listener{net: n, at: at, addr: net.TCPAddrFromAddrPort(at)}
	n.listeners[at] = l
	return l, nil
}

// Accept returns the next stream, a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.net.mu.Lock()
		if l.closed {
			l.net.mu.Unlock()
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
		}
		if len(l.backlog) > 0 {
			c := l.backlog[0]
			l.backlog = l.backlog[1:]
			l.net.mu.Unlock()
			return c, nil
		}
		changed := l.changed.Next()
		l.net.mu.Unlock()
		<-changed
	}
}

// Close frees the address and resets the streams that were not accepted.
func (l *Listener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
	l.closeLocked()
	return nil
}

func (l *Listener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.net.listeners, l.at)
	for _, c := range l.backlog {
		c.abortLocked()
	}
	l.backlog = nil
	l.changed.Fire()
}

// Addr returns the listener's address, a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.addr }

// Dial opens a stream from the host fromHost to the listener at toAddr,
// "ip:port". It takes a round trip, is refused without a listener, and hangs
// until ctx ends while the link is cut.
func (n *Network) Dial(ctx context.Context, fromHost, toAddr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: hostAddr(toAddr), Err: err}
	}
	host, err := netip.ParseAddr(fromHost)
	if err != nil {
		return fail(err)
	}
	to, err := netip.ParseAddrPort(toAddr)
	if err != nil {
		return fail(err)
	}
	there, back := pair{fromHost, to.Addr().String()}, pair{to.Addr().String(), fromHost}
	if err := n.cross(ctx, there); err != nil {
		return fail(err)
	}
	c, refused := n.connect(host, to)
	if err := n.cross(ctx, back); err != nil {
		c.abandon()
		return fail(err)
	}
	if refused != nil {
		return fail(refused)
	}
	return c, nil
}

// cross waits as long as one segment takes over way: its delay, and before
// that until the way is not cut.
func (n *Network) cross(ctx context.Context, way pair) error {
	for {
		n.mu.Lock()
		r := n.rulesFor(way)
		if !r.Cut {
			d := n.linkFor(way).segment(r)
			n.mu.Unlock()
			if d > 0 && wait.For(ctx.Done(), d) {
				return nil
			}
			return ctx.Err()
		}
		changed := n.changed.Next()
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connect makes the two ends of a stream and queues the accepting one.
func (n *Network) connect(host netip.Addr, to netip.AddrPort) (*Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, net.ErrClosed
	}
	l := n.listeners[to]
	if l == nil || len(l.backlog) >= backlogConns {
		return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	}
	from, err := n.freePort(host, n.dialed)
	if err != nil {
		return nil, err
	}
	dialer, accepter := newConns(n, from, to)
	l.backlog = append(l.backlog, accepter)
	l.changed.Fire()
	return dialer, nil
}

// dialed reports whether a stream has at as one of its ends. n.mu is held.
func (n *Network) dialed(at netip.AddrPort) bool {
	for c := range n.conns {
		if c.at == at {
			return true
		}
	}
	return n.listeners[at] != nil
}

// A hostAddr is an address as the caller wrote it.
type hostAddr string

func (a hostAddr) Network() string { return "tcp" }
func (a hostAddr) String() string  { return string(a) }
