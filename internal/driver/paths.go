package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A PathNetwork makes the sockets of paths.
type PathNetwork struct {
	// Dial connects to the data port of a node, at the address that its link was
	// dialed at.
	Dial func(ctx context.Context, address string) (*net.TCPConn, error)
	// Plaintext says that this node's applications use paths without TLS, as its
	// links over tcp.
	Plaintext bool
}

// pathVersion is the version of the link's protocol that has Path.
const pathVersion = 3

// The bounds of a path's making.
const (
	// pathJoin is how long the application that asks first waits for the other one
	// and for the socket.
	pathJoin = 2 * time.Second
	// pathDial bounds the dialing of the socket and its greeting.
	pathDial = time.Second
	// pathDrain bounds how long a socket is kept for what its end has sent, after
	// the last byte that came the other way, and pathDrainAll how long in all.
	pathDrain    = 10 * time.Second
	pathDrainAll = time.Minute
)

// A connPath is a connection's path as this node sees it. The node keeps a
// duplicate of the socket, and ends it with the connection.
type connPath struct {
	mu     sync.Mutex    // guards the fields below; innermost
	want   func()        // tells the application that the peer asks; nil: told, or not wanted
	peer   *wire.Path    // what the peer has asked with
	ours   *wire.Path    // what this end has asked with
	joined bool          // both have asked
	made   chan struct{} // closed when the path is made, or will not be; nil before ours
	socket *net.TCPConn  // this node's duplicate
	since  time.Time     // it is there, by the wall clock
	why    error         // why there is no path
	over   bool          // no path is made any more, and the one there was has ended
}

var _ ipc.PathEndpoint = (*endpoint)(nil)

// Path implements ipc.PathEndpoint.
func (e *endpoint) Path(ctx context.Context, key path.Hash) (ipc.PathSocket, error) {
	e.mu.Lock()
	c := e.conn
	e.mu.Unlock()
	switch {
	case c == nil:
		return ipc.PathSocket{}, status.NotConn
	case c.link.twin != nil:
		return ipc.PathSocket{}, fmt.Errorf("the peer is on this node: %w", status.NotSupp)
	case c.link.n.cfg.Paths == nil:
		return ipc.PathSocket{}, fmt.Errorf("this node makes no paths: %w", status.NotSupp)
	case c.link.version < pathVersion:
		return ipc.PathSocket{}, fmt.Errorf("the peer's fabricd knows no paths: %w", status.NotSupp)
	}
	if err := c.askPath(key); err != nil {
		return ipc.PathSocket{}, err
	}
	return c.awaitPath(ctx)
}

// OnPath implements ipc.PathEndpoint.
func (e *endpoint) OnPath(fn func()) {
	e.mu.Lock()
	c := e.conn
	e.mu.Unlock()
	if c == nil {
		return
	}
	p := &c.path
	p.mu.Lock()
	asked := p.peer != nil
	if !asked {
		p.want = fn
	}
	p.mu.Unlock()
	if asked {
		fn()
	}
}

// NoPath implements ipc.PathEndpoint.
func (e *endpoint) NoPath(why string, used bool) {
	e.mu.Lock()
	c := e.conn
	e.mu.Unlock()
	switch {
	case c == nil:
	case used:
		c.fail("path: " + why)
	default:
		c.refusePath(fmt.Errorf("%s: %w", why, status.NotSupp))
	}
}

// askPath asks the peer for a path.
func (c *conn) askPath(key path.Hash) error {
	p, n := &c.path, c.link.n
	ask := wire.Path{Token: path.NewToken(), Key: key, Plaintext: n.cfg.Paths.Plaintext}
	p.mu.Lock()
	switch {
	case p.ours != nil:
		p.mu.Unlock()
		return fmt.Errorf("the connection has asked for its path: %w", status.InUse)
	case p.over:
		defer p.mu.Unlock()
		return p.reason()
	}
	p.ours, p.made, p.want = &ask, make(chan struct{}), nil
	if !c.link.dialed {
		n.expectPath(ask.Token, c)
	}
	p.mu.Unlock()
	c.queueFrame(ask.AppendTo(nil)) // before the socket: the token is known to the peer first
	p.mu.Lock()
	defer p.mu.Unlock()
	c.joinPathLocked()
	return nil
}

// reason is why there is no path. The caller holds mu.
func (p *connPath) reason() error {
	if p.why != nil {
		return p.why
	}
	return fmt.Errorf("the connection has ended: %w", status.Reset)
}

// queueFrame sends a frame on the operations lane.
func (c *conn) queueFrame(frame []byte) {
	c.mu.Lock()
	c.ops.put(frame)
	c.mu.Unlock()
	c.kick(false)
}

// onPath handles the peer's Path.
func (c *conn) onPath(f wire.Path) error {
	p := &c.path
	p.mu.Lock()
	if p.peer != nil {
		p.mu.Unlock()
		return fmt.Errorf("%w: a second Path", status.Protocol)
	}
	p.peer = &f
	if c.link.n.cfg.Paths == nil {
		p.mu.Unlock()
		c.refusePath(fmt.Errorf("this node makes no paths: %w", status.NotSupp))
		return nil
	}
	want := p.want
	p.want = nil
	p.settleLocked()
	c.joinPathLocked()
	p.mu.Unlock()
	if want != nil {
		want()
	}
	return nil
}

// joinPathLocked makes the path when both ends have asked. The caller holds path.mu.
func (c *conn) joinPathLocked() {
	p := &c.path
	if p.ours == nil || p.peer == nil || p.over || p.joined {
		return
	}
	p.joined = true
	switch {
	case p.ours.Plaintext != p.peer.Plaintext:
		c.link.spawn(func() {
			c.refusePath(fmt.Errorf("tcp-plaintext is set at one of the two nodes only: %w", status.NotSupp))
		})
	case c.link.dialed:
		token := path.Token(p.peer.Token)
		c.link.spawn(func() { c.dialPath(token) })
	}
}

// dialPath dials the peer's data port and shows the token that the peer has made.
func (c *conn) dialPath(token path.Token) {
	ctx, cancel := contextUntil(c.link.down)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, pathDial)
	defer stop()
	s, err := c.link.n.cfg.Paths.Dial(ctx, c.link.sess.RemoteAddr())
	if err == nil {
		s.SetDeadline(time.Now().Add(pathDial))
		over := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
		err = path.Greet(s, token)
		if !over() || err != nil {
			err = errors.Join(err, ctx.Err())
			s.Close()
		}
	}
	if err != nil {
		c.refusePath(fmt.Errorf("the peer's data port: %w: %w", err, status.NotSupp))
		return
	}
	c.settlePath(s)
}

// settlePath gives the connection its socket, which is the node's duplicate from now on.
func (c *conn) settlePath(s *net.TCPConn) bool {
	s.SetDeadline(time.Time{})
	path.Tune(s)
	p := &c.path
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.socket != nil || p.ours == nil {
		s.Close()
		return false
	}
	p.socket, p.since = s, time.Now()
	p.settleLocked()
	return true
}

// settleLocked ends the wait for a path that is made: its socket is there, and what the
// peer has asked with, which may come later. The caller holds mu.
func (p *connPath) settleLocked() {
	if p.socket != nil && p.peer != nil {
		close(p.made)
	}
}

// info describes the path; nil if there is none.
func (p *connPath) info() *PathInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil || p.peer == nil {
		return nil
	}
	t := path.TrafficOf(p.socket)
	return &PathInfo{
		Local: p.socket.LocalAddr().String(), Remote: p.socket.RemoteAddr().String(), TLS: !p.ours.Plaintext, Since: p.since,
		SentBytes: t.Sent, ReceivedBytes: t.Received, RoundTripUS: t.RoundTrip.Microseconds(),
	}
}

// awaitPath waits until the path is made and returns this end of it.
func (c *conn) awaitPath(ctx context.Context) (ipc.PathSocket, error) {
	p := &c.path
	t := time.NewTimer(pathJoin)
	defer t.Stop()
	select {
	case <-p.made:
	case <-t.C:
		c.refusePath(fmt.Errorf("the application at the other end does not join: %w", status.NotSupp))
	case <-ctx.Done():
		c.refusePath(fmt.Errorf("the application does not wait: %w", status.NotSupp))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil || p.over {
		return ipc.PathSocket{}, p.reason()
	}
	f, err := path.Duplicate(p.socket)
	if err != nil {
		return ipc.PathSocket{}, fmt.Errorf("%w: %w", status.NoMemory, err)
	}
	binding := path.Bind(p.ours.Token, p.peer.Token)
	if !c.link.dialed {
		binding = path.Bind(p.peer.Token, p.ours.Token)
	}
	return ipc.PathSocket{File: f, Client: c.link.dialed, Plaintext: p.ours.Plaintext, Binding: binding, Peer: path.Hash(p.peer.Key)}, nil
}

// refusePath ends the path, or its making, for both ends.
func (c *conn) refusePath(why error) {
	if c.endPath(why) {
		c.queueFrame(wire.NoPath{Reason: why.Error()}.AppendTo(nil))
	}
}

// onNoPath handles the peer's NoPath.
func (c *conn) onNoPath(reason string) {
	c.endPath(fmt.Errorf("the peer's node says: %s: %w", ipc.CleanCause(reason), status.NotSupp))
}

// endPath shuts the path down at once: neither application sends or receives a byte
// more. It reports whether this was the call that did it.
func (c *conn) endPath(why error) bool {
	p := &c.path
	p.mu.Lock()
	first := !p.over
	s := c.leavePathLocked(why)
	if s != nil { // with the lock: a call that finds it over finds it shut down
		path.Shutdown(s)
	}
	p.mu.Unlock()
	if s == nil {
		return first
	}
	s.Close()
	select {
	case <-c.ended: // only for its path the link still knew it
		c.link.forget(c)
	default:
	}
	return first
}

// leavePathLocked makes the path be over, and returns the node's duplicate, if there is one,
// which the caller ends. The caller holds path.mu.
func (c *conn) leavePathLocked(why error) *net.TCPConn {
	p := &c.path
	if p.over {
		return nil
	}
	s := p.socket
	if p.ours != nil {
		c.link.n.forgetPath(p.ours.Token)
		if s == nil || p.peer == nil { // else it is closed
			close(p.made)
		}
	}
	p.over, p.why, p.socket = true, why, nil
	return s
}

// mutePath ends what this end's application writes: the peer's has closed. A path that is
// being made is none: the peer cannot have sent anything through it.
func (c *conn) mutePath() {
	p := &c.path
	p.mu.Lock()
	made := p.socket != nil && p.peer != nil
	if made {
		_ = p.socket.CloseWrite() // it fails only where the socket has ended
	}
	p.mu.Unlock()
	if !made {
		c.endPath(nil)
	}
}

// hasPath reports whether the connection has a path that has not ended.
func (c *conn) hasPath() bool {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.socket != nil
}

// finishPath ends the path in order, behind what this end's application has written.
// The socket is kept until that can have arrived: one that is closed with bytes
// unread resets, which can destroy them.
func (c *conn) finishPath() {
	defer c.link.forget(c)
	p := &c.path
	p.mu.Lock()
	s := c.leavePathLocked(nil)
	p.mu.Unlock()
	if s == nil {
		return
	}
	n := c.link.n
	n.work.run(func() {
		defer s.Close()
		ctx, cancel := contextUntil(n.done)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		_ = s.CloseWrite() // it fails only where the socket has ended
		drainSocket(ctx, s)
	})
}

// drainSocket reads until the peer's end, or until nothing has come for pathDrain.
func drainSocket(ctx context.Context, s *net.TCPConn) {
	var buf [4 << 10]byte
	end := time.Now().Add(pathDrainAll)
	for ctx.Err() == nil {
		s.SetReadDeadline(earlier(time.Now().Add(pathDrain), end))
		if _, err := s.Read(buf[:]); err != nil {
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// expectPath notes that a socket with that token is c's path.
func (n *Node) expectPath(t path.Token, c *conn) {
	n.pathsMu.Lock()
	defer n.pathsMu.Unlock()
	n.paths[t] = c
}

func (n *Node) forgetPath(t path.Token) {
	n.pathsMu.Lock()
	defer n.pathsMu.Unlock()
	delete(n.paths, t)
}

// AcceptPath takes a socket that was accepted at the data port and begins with
// path.First. It is given up, and closed, unless it shows a token that a
// connection waits for.
func (n *Node) AcceptPath(s *net.TCPConn, first io.Reader) {
	err := n.acceptPath(s, first)
	if err != nil {
		s.Close()
		n.refusals.Line(zerolog.InfoLevel, remoteOf(s)).Err(err).Msg("a path was refused")
	}
}

func remoteOf(s *net.TCPConn) netip.Addr {
	if a, ok := s.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

var errNoToken = errors.New("no connection waits for a path with this token")

func (n *Node) acceptPath(s *net.TCPConn, first io.Reader) error {
	s.SetDeadline(time.Now().Add(pathDial))
	t, err := path.ReadGreeting(first)
	if err != nil {
		return err
	}
	n.pathsMu.Lock()
	c := n.paths[t]
	delete(n.paths, t) // whatever comes of it: it is used up
	n.pathsMu.Unlock()
	if c == nil {
		return errNoToken
	}
	if err := path.Accept(s); err != nil {
		return err
	}
	if !c.settlePath(s) {
		return errNoToken
	}
	return nil
}
