package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A PathNetwork makes the sockets of paths.
type PathNetwork struct {
	// Dial connects to the data port of a node, at the address that its link was dialed at.
	Dial func(ctx context.Context, address string) (*net.TCPConn, error)
	// Plaintext means that this node's applications use paths without TLS, as its links over tcp.
	Plaintext bool
	// Max bounds the paths of this node, those that are still drained behind a close
	// included; 0: no bound.
	Max int
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
)

// A connPath is a connection's path as this node sees it. The node keeps a
// duplicate of the socket, and ends it with the connection.
//
// A path that could not be made for a passing reason may be tried again. An attempt
// begins with Path of either side, and is over when both have sent NoPath: frames
// between belong to the one that fails.
type connPath struct {
	anyPath           // its mu is taken before conn.mu; socket is this node's duplicate
	want       func() // notifies the application that the peer asks; nil: it is not wanted
	rest       []byte // the application's last bytes, for which the socket had no room
	joined     bool   // both have asked
	noPathSent bool   // NoPath was sent, and the peer's has not come
}

// Path implements attach.NodeEndpoint.
func (e *endpoint) Path(ctx context.Context, key path.Hash, freed func()) (attach.PathSocket, error) {
	c, err := e.pathConn()
	var ours *wire.Path
	if err == nil {
		ours, err = c.askPath(key, freed)
	}
	if err != nil {
		freed()
		return attach.PathSocket{}, err
	}
	return c.awaitPath(ctx, ours)
}

// PathRest implements attach.NodeEndpoint.
func (e *endpoint) PathRest(b []byte) error {
	c := e.lastConn()
	if c == nil {
		return status.NotConn
	}
	p := &c.path
	p.mu.Lock()
	defer p.mu.Unlock()
	if b == nil || !p.isMade() || len(p.rest)+len(b) > path.RestMost {
		p.rest = nil
		return fmt.Errorf("the path has no room for the rest: %w", status.Invalid)
	}
	p.rest = append(p.rest, b...)
	return nil
}

// pathConn returns the connection if it can have a path.
func (e *endpoint) pathConn() (*conn, error) {
	c := e.lastConn()
	if c == nil {
		return nil, status.NotConn
	}
	return c, c.mayHavePath("paths", pathVersion)
}

// OnPath implements attach.NodeEndpoint.
func (e *endpoint) OnPath(fn func()) {
	c := e.lastConn()
	if c == nil {
		return
	}
	p := &c.path
	p.mu.Lock()
	p.want = fn
	asked := p.peer != nil && p.ours == nil
	p.mu.Unlock()
	if asked {
		fn()
	}
}

// HungUp implements attach.NodeEndpoint.
func (e *endpoint) HungUp() <-chan struct{} { return e.hungUp }

// NoPath implements attach.NodeEndpoint.
func (e *endpoint) NoPath(why string, used bool) {
	c := e.lastConn()
	switch {
	case c == nil:
	case used:
		c.fail("path: " + why)
	default:
		c.refusePath(nil, fmt.Errorf("%s: %w", why, status.Again))
	}
}

// askPath asks the peer for a path. It takes freed if it returns no error.
func (c *conn) askPath(key path.Hash, freed func()) (*wire.Path, error) {
	p, n := &c.path, c.link.n
	ask := &wire.Path{Token: path.NewToken(), Key: key, Plaintext: n.cfg.Paths.Plaintext}
	defer c.kick(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ours != nil:
		return nil, fmt.Errorf("the connection has asked for its path: %w", status.InUse)
	case p.over:
		return nil, p.reason()
	case p.noPathSent:
		return nil, fmt.Errorf("the attempt before has not ended at the peer: %w", status.Again)
	}
	if err := n.paths.admit(n.cfg.Paths.Max); err != nil {
		c.refuseLocked(nil, err)
		return nil, err
	}
	p.ours, p.made, p.freed = ask, make(chan struct{}), freed
	if !c.link.dialed {
		n.paths.expect(ask.Token, func(s *net.TCPConn) bool { return c.settlePath(ask, s) })
	}
	c.queueFrame(ask.AppendTo(nil)) // before the socket: the token is known to the peer first
	c.joinPathLocked()
	return ask, nil
}

// queueFrame puts a frame on the operations stream, for a caller that holds path.mu and then kicks.
func (c *conn) queueFrame(frame []byte) {
	c.mu.Lock()
	c.core.Queue(frame)
	c.mu.Unlock()
}

// onPath handles the peer's Path.
func (c *conn) onPath(f wire.Path) error {
	p := &c.path
	p.mu.Lock()
	if p.noPathSent || p.over { // it has crossed this end's NoPath
		p.mu.Unlock()
		return nil
	}
	if p.peer != nil {
		p.mu.Unlock()
		return fmt.Errorf("%w: a second Path", status.Protocol)
	}
	p.peer = &f
	var want func()
	switch {
	case c.link.n.cfg.Paths == nil:
		c.refuseLocked(nil, errNoPaths)
	case p.tooSoon():
		c.refuseLocked(nil, fmt.Errorf("it is too soon for another attempt: %w", status.Again))
	default:
		if p.ours == nil {
			want = p.want
		}
		p.settleLocked()
		c.joinPathLocked()
	}
	p.mu.Unlock()
	c.kick(false)
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
		c.refuseLocked(nil, errMixed)
	case c.link.dialed:
		ours, token, over := p.ours, path.Token(p.peer.Token), p.made
		c.link.spawn(func() { c.dialPath(ours, token, over) })
	}
}

// dialPath dials the peer's data port and sends the token that the peer has made.
func (c *conn) dialPath(ours *wire.Path, token path.Token, over <-chan struct{}) {
	s, err := c.dialSocket(token, over)
	if err != nil {
		c.refusePath(ours, err)
		return
	}
	c.settlePath(ours, s)
}

// dialSocket dials the peer's data port and sends token there, until over is closed: a path
// that has ended does not count any more, and holds no descriptor.
func (c *conn) dialSocket(token path.Token, over <-chan struct{}) (*net.TCPConn, error) {
	ctx, stop := context.WithTimeout(contextUntil(over), pathDial)
	defer stop()
	s, err := c.link.n.cfg.Paths.Dial(ctx, c.link.sess.RemoteAddr())
	if err == nil {
		s.SetDeadline(time.Now().Add(pathDial))
		inTime := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
		err = path.Greet(s, token)
		if !inTime() || err != nil {
			err = errors.Join(err, ctx.Err())
			s.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the peer's data port: %w: %w", err, status.Again)
	}
	return s, nil
}

// settlePath gives the connection the socket of an attempt, which is the node's duplicate
// from now on.
func (c *conn) settlePath(ours *wire.Path, s *net.TCPConn) bool {
	s.SetDeadline(time.Time{})
	path.Tune(s)
	held, err := path.Hold(s)
	if err != nil {
		c.refusePath(ours, fmt.Errorf("%w: %w", err, status.Again))
		return false
	}
	p := &c.path
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.socket != nil || p.ours != ours {
		held.Close()
		return false
	}
	p.socket, p.since, p.silence = held, time.Now(), path.Silence{}
	p.settleLocked()
	c.note("path-up", "")
	return true
}

// awaitPath waits until the path that this end has asked for with ours is made, and
// returns this end of it.
func (c *conn) awaitPath(ctx context.Context, ours *wire.Path) (attach.PathSocket, error) {
	p := &c.path
	p.mu.Lock()
	made := p.made
	p.mu.Unlock()
	select {
	case <-made:
	case <-time.After(pathJoin):
		c.refusePath(ours, fmt.Errorf("the application at the other end does not join: %w", status.Again))
	case <-ctx.Done():
		c.refusePath(ours, fmt.Errorf("the application does not wait: %w", status.Again))
	}
	defer c.kick(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil || p.ours != ours {
		return attach.PathSocket{}, p.reason()
	}
	s, err := p.handOut(c.link.dialed)
	if err != nil {
		c.refuseLocked(ours, err)
	}
	return s, err
}
