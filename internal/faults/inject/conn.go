package inject

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/wait"
)

// A DialFunc opens a TCP connection to "host:port".
type DialFunc func(ctx context.Context, address string) (net.Conn, error)

// A Conn is a TCP connection that rules delay, stop or reset. It is a net.Conn;
// Close never waits.
type Conn struct {
	net.Conn // the connection below
	peer     peer
	layer    *Layer
	proved   atomic.Pointer[addr.UUID] // by the user: the node at the other end; nil: not yet
	out      sendDirection
	in       recvDirection

	once   sync.Once
	gone   chan struct{} // closed when the connection below is closed
	closed atomic.Bool   // by the user
	reset  atomic.Bool
	wake   wait.Broadcast // fires with every poke, for goroutines that linger
}

// newConn wraps c; peers returns the nodes that may be at the other end while none is identified.
func (l *Layer) newConn(c net.Conn, on faults.Traffic, peers func() []addr.NodeID) *Conn {
	w := &Conn{Conn: c, layer: l, gone: make(chan struct{})}
	w.peer.layer = l
	w.peer.setTraffic(on)
	w.peer.peers = func() []addr.NodeID {
		if node := w.proved.Load(); node != nil {
			return []addr.NodeID{l.plane.Names.Node(*node)}
		}
		return peers()
	}
	w.out = sendDirection{to: c, onEnd: w.end,
		direction: direction{sending: true, peer: &w.peer, setBelow: c.SetWriteDeadline, stop: w.gone, onFail: w.explain}}
	w.in = recvDirection{from: c, direction: direction{peer: &w.peer, setBelow: c.SetReadDeadline, stop: w.gone, onFail: w.explain}}
	if !l.add(w) {
		w.end()
	}
	return w
}

// Identified names the node that is proved to be at the other end.
func (c *Conn) Identified(node addr.UUID) {
	c.proved.Store(&node)
	c.obey(c.peer.gate(true, true), true)
}

// obey ends the connection if the gate demands it. A connection that is fresh ends
// under a rule that refuses, too.
func (c *Conn) obey(g faults.Gate, fresh bool) bool {
	if !g.Reset && !(fresh && g.Refused) {
		return false
	}
	c.sever()
	return true
}

// sever ends the connection as a reset does.
func (c *Conn) sever() {
	c.reset.Store(true)
	c.out.queue.fail(syscall.ECONNRESET)
	c.in.queue.fail(syscall.ECONNRESET)
	if l, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0) // a TCP connection ends with a reset then
	}
	c.end()
}

// explain returns the error that a user gets.
func (c *Conn) explain(err error) error {
	switch {
	case c.reset.Load():
		err = syscall.ECONNRESET
	case c.closed.Load() || err == errStopped || err == errFinished:
		err = net.ErrClosed
	}
	if _, ok := errors.AsType[*net.OpError](err); ok || err == io.EOF {
		return err
	}
	return &net.OpError{Op: "fault", Net: "tcp", Addr: c.RemoteAddr(), Err: err}
}

func (c *Conn) poke() {
	if c.peer.gate(true, false).Reset {
		c.obey(c.peer.gate(true, true), false)
	}
	c.out.queue.changed.Fire()
	c.in.queue.changed.Fire()
	c.wake.Fire()
}

func (c *Conn) abort() { c.end() }

// end frees the connection below.
func (c *Conn) end() {
	c.once.Do(func() {
		close(c.gone)
		c.out.queue.fail(net.ErrClosed)
		c.in.queue.fail(net.ErrClosed)
		_ = c.Conn.Close() // the error is the peer's loss
		c.layer.remove(c)
	})
}

// Read and Write are those of net.Conn.
func (c *Conn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Write returns when p is handed over; under a rule it may then wait here.
func (c *Conn) Write(p []byte) (int, error) {
	if c.closed.Load() {
		return 0, c.explain(net.ErrClosed)
	}
	return c.out.Write(p)
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.out.setDeadline(t), c.in.setDeadline(t))
}

// SetReadDeadline is that of net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.in.setDeadline(t) }

// SetWriteDeadline is that of net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(t) }

// Close ends the connection. Written bytes go on, and the peer learns of the end, only when the
// rules let it pass; that is not waited for.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	waits := c.out.isPumped() || c.peer.gate(true, false).Stopped
	if !waits || !c.layer.linger(c.linger) {
		c.end()
	}
	return nil
}

// linger keeps a closed connection until all was sent, or the peer has ended it.
func (c *Conn) linger() {
	defer c.end()
	ended := c.discard()
	c.out.queue.finish(errFlushed)
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	for {
		wake := c.wake.Next()
		drained := !c.out.isPumped() || wait.Over(c.out.ended)
		if drained && !c.peer.gate(true, false).Stopped {
			return
		}
		var flushed <-chan struct{}
		if !drained {
			flushed = c.out.ended
		}
		select {
		case <-wake:
		case <-flushed:
		case <-ended:
			return
		case <-timer.C:
			return
		case <-c.gone:
			return
		case <-c.layer.ctx.Done():
			return
		}
	}
}

// errFlushed ends the pump of a connection that lingers.
const errFlushed sentinel = "flushed"

// discard makes the receiving direction drop arriving bytes. It returns a channel that is closed when the
// peer has ended the connection.
func (c *Conn) discard() <-chan struct{} {
	c.in.interrupt(net.ErrClosed)
	c.in.using.Lock() // the reader has left, or leaves at once
	defer c.in.using.Unlock()
	if !c.in.isPumped() && !c.in.startPump(c.in.pump) {
		return c.gone
	}
	return c.in.ended
}

// Dial returns dial under the rules on the plane. A dial across a cut hangs until
// ctx ends, one across a half-open link is refused; others take the time that
// the rules add to a round trip.
func (l *Layer) Dial(dial DialFunc, on faults.Traffic) DialFunc {
	return func(ctx context.Context, address string) (net.Conn, error) {
		w := l.peerAt(address, on)
		if err := l.approach(ctx, w); err != nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: place(address), Err: err}
		}
		c, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		return l.newConn(c, on, w.peers), nil
	}
}

// place is an address that is not resolved.
type place string

func (p place) Network() string { return "tcp" }
func (p place) String() string  { return string(p) }

// approach waits as long as the path to a peer takes, there and back.
func (l *Layer) approach(ctx context.Context, w *peer) error {
	if l.ctx.Err() != nil {
		return net.ErrClosed
	}
	if w.idle() {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(net.ErrClosed) })()
	there, _ := w.judge(true, synSize)
	back, _ := w.judge(false, synSize)
	due := in(there + back)
	for first := true; ; first = false {
		changed, next := l.plane.Watch()
		g := w.gate(true, first)
		switch {
		case g.Refused:
			return os.NewSyscallError("connect", syscall.ECONNREFUSED)
		case !g.Stopped && (due.IsZero() || wait.Passed(due, time.Now())):
			return nil
		}
		until := due
		if g.Stopped {
			until = in(next)
		}
		if !sleep(changed, ctx.Done(), until) {
			return context.Cause(ctx)
		}
	}
}

// synSize is the size of the packet that opens a connection, in bytes.
const synSize = 60

// Listener returns inner with its connections under the rules on the plane. On Control they belong
// to no node until they are identified.
func (l *Layer) Listener(inner net.Listener, on faults.Traffic) net.Listener {
	return &listener{inner, l, on}
}

type listener struct {
	net.Listener
	layer *Layer
	on    faults.Traffic
}

// An undecided connection shows only with its first bytes whether it is for its acceptor: reading
// them fails if it is not. Rules do not apply before.
type undecided interface{ Undecided() bool }

// Accept returns the next connection that no rule refuses. One that is undecided
// may be refused later, as soon as its first bytes have come.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := l.layer.newConn(inner, l.on, l.peers(inner.RemoteAddr()))
		if u, ok := inner.(undecided); ok && u.Undecided() {
			c.in.first = func([]byte) { c.refused() }
			return c, nil
		}
		if !c.refused() {
			return c, nil
		}
	}
}

// refused ends a new connection that a rule refuses, and reports whether it did.
func (c *Conn) refused() bool {
	if !c.obey(c.peer.gate(true, false), true) {
		return false
	}
	c.peer.gate(true, true) // counts
	return true
}

// peers returns the nodes that may have opened a connection that comes from an address.
func (l *listener) peers(from net.Addr) func() []addr.NodeID {
	nobody := []addr.NodeID{addr.NoNode}
	at, err := netip.ParseAddrPort(from.String())
	if l.on != faults.Gossip || err != nil {
		return func() []addr.NodeID { return nobody }
	}
	return func() []addr.NodeID {
		var others []addr.NodeID
		for _, id := range l.layer.plane.Names.On(at.Addr()) {
			if id != l.layer.plane.Self() {
				others = append(others, id)
			}
		}
		if len(others) == 0 {
			return nobody
		}
		return others
	}
}
