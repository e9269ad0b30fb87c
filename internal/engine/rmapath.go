package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// rmaVersion is the version of the link's protocol that has RMAPath.
const rmaVersion = 4

// A connRMA is a connection's RMA paths at one of its ends: out for the operations of the
// application here, in for those of the peer's, which this node applies.
type connRMA struct {
	out, in rmaPath
	// applying is held while memory of a window is used for an operation that came
	// through in; taken before conn.mu.
	applying sync.Mutex
	// withdrawing: the withdrawal of a window of the peer is announced, but not done. Guarded
	// by conn.mu.
	withdrawing bool
}

// A rmaPath is one RMA path at one of its ends. At out the socket is the node's
// duplicate, to end it and to count the bytes that the application has written.
type rmaPath struct {
	anyPath               // its mu is innermost
	written *path.Written // of out
	taken   uint64        // of in: bytes of the socket whose operations have been applied
	moved   chan struct{} // closed when taken rises or may soon; nil while no goroutine waits
	gone    chan struct{} // of in: closed when it is over
}

var _ attach.RMAPathEndpoint = (*endpoint)(nil)

// rmaKey is the key of this process's ends of RMA paths that it serves.
var rmaKey = sync.OnceValues(path.NewKey)

// RMAPath implements attach.RMAPathEndpoint.
func (e *endpoint) RMAPath(ctx context.Context, key path.Hash, freed func()) (attach.PathSocket, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		freed()
		return attach.PathSocket{}, err
	}
	if err = c.mayHavePath("RMA paths", rmaVersion); err == nil {
		err = c.askRMA(key, freed)
	}
	if err != nil {
		freed()
		c.rma.out.notAsked(err)
		return attach.PathSocket{}, err
	}
	return c.awaitRMA(ctx)
}

// notAsked records why the path was not asked for, unless it had been.
func (p *rmaPath) notAsked(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours == nil && !p.over {
		p.why = why
	}
}

// NoRMAPath implements attach.RMAPathEndpoint.
func (e *endpoint) NoRMAPath(why string, used bool) {
	c, err := e.connection(core.CallMemory)
	switch {
	case err != nil:
	case used:
		c.fail("RMA path: " + why)
	default:
		c.refuseRMA(&c.rma.out, fmt.Errorf("%s: %w", why, status.NotSupp))
	}
}

// FarWindow implements attach.RMAPathEndpoint.
func (e *endpoint) FarWindow(roff int64) (attach.PeerWindow, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return attach.PeerWindow{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.withdrawals.ended() { // as in peerWindow
		return attach.PeerWindow{}, status.Reset
	}
	if c.rma.withdrawing { // subscribers were notified already, and would not be again
		return attach.PeerWindow{}, status.Again
	}
	w, err := c.core.AnnouncedAt(roff)
	return attach.PeerWindow{Offset: w.Offset, Length: w.Length, Prot: w.Prot}, err
}

// askRMA asks the peer's node to serve an RMA path. It takes freed if it returns no error.
func (c *conn) askRMA(key path.Hash, freed func()) error {
	p, n := &c.rma.out, c.link.n
	ask := wire.RMAPath{Token: path.NewToken(), Key: key, Plaintext: n.cfg.Paths.Plaintext}
	p.mu.Lock()
	switch {
	case p.ours != nil:
		p.mu.Unlock()
		return fmt.Errorf("the connection has asked for its RMA path: %w", status.InUse)
	case p.over:
		defer p.mu.Unlock()
		return p.reason()
	}
	if err := n.paths.admit(n.cfg.Paths.Max); err != nil {
		p.mu.Unlock()
		return err
	}
	p.ours, p.made, p.freed, p.why = offer(ask), make(chan struct{}), freed, nil
	if !c.link.dialed {
		n.paths.expect(ask.Token, func(s *net.TCPConn) bool { return c.settleRMA(p, s) })
	}
	p.mu.Unlock()
	c.say(ask.AppendTo(nil))
	return nil
}

// awaitRMA waits until the path is made and returns the application's end of it.
func (c *conn) awaitRMA(ctx context.Context) (attach.PathSocket, error) {
	p := &c.rma.out
	t := time.NewTimer(pathJoin)
	defer t.Stop()
	select {
	case <-p.made:
	case <-t.C:
		c.refuseRMA(p, fmt.Errorf("the peer's node does not answer: %w", status.NotSupp))
	case <-ctx.Done():
		c.refuseRMA(p, fmt.Errorf("the application does not wait: %w", status.NotSupp))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil || p.over {
		return attach.PathSocket{}, p.reason()
	}
	return p.handOut(c.link.dialed)
}

// applyRMA handles a frame about RMA paths.
func (c *conn) applyRMA(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeRMAPath:
		f, err := wire.ParseRMAPath(h.Flags, body)
		if err != nil {
			return err
		}
		return c.onRMAPath(f)
	case wire.TypeNoRMAPath:
		f, err := wire.ParseNoRMAPath(h.Flags, body)
		if err == nil {
			c.onNoRMAPath(f)
		}
		return err
	default:
		f, err := wire.ParseRMAPassed(h.Flags, body)
		if err != nil {
			return err
		}
		return c.onRMAPassed(f.Bytes)
	}
}

// onRMAPath handles the peer's RMAPath.
func (c *conn) onRMAPath(f wire.RMAPath) error {
	if f.Answer {
		return c.onRMAAnswer(f)
	}
	p := &c.rma.in
	p.mu.Lock()
	second := p.peer != nil
	if !second {
		p.peer, p.gone = offer(f), make(chan struct{})
	}
	p.mu.Unlock()
	if second {
		return fmt.Errorf("%w: a second RMAPath", status.Protocol)
	}
	if err := c.acceptRMA(f); err != nil {
		c.refuseRMA(p, err)
	}
	return nil
}

// acceptRMA answers that this node serves the path that f asks for.
func (c *conn) acceptRMA(f wire.RMAPath) error {
	n, p := c.link.n, &c.rma.in
	switch {
	case n.cfg.Paths == nil:
		return errNoPaths
	case n.cfg.Paths.Plaintext != f.Plaintext:
		return errMixed
	}
	key, err := rmaKey()
	if err != nil {
		return fmt.Errorf("%w: %w", status.NotSupp, err)
	}
	if err := n.paths.admit(n.cfg.Paths.Max); err != nil {
		return err
	}
	ours := wire.RMAPath{Token: path.NewToken(), Key: key.Hash(), Plaintext: f.Plaintext, Answer: true}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		n.paths.left()
		return nil
	}
	p.ours = offer(ours)
	over := p.gone
	settle := func(s *net.TCPConn) bool { return c.settleRMA(p, s) }
	if !c.link.dialed {
		n.paths.expect(ours.Token, settle)
	}
	p.mu.Unlock()
	c.say(ours.AppendTo(nil))
	if c.link.dialed {
		c.link.spawn(func() { c.dialRMA(p, f.Token, over) })
	}
	return nil
}

// offer returns the path in f.
func offer(f wire.RMAPath) *wire.Path {
	return &wire.Path{Token: f.Token, Key: f.Key, Plaintext: f.Plaintext}
}

// onRMAAnswer handles the answer to this end's RMAPath.
func (c *conn) onRMAAnswer(f wire.RMAPath) error {
	p := &c.rma.out
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ours == nil || p.peer != nil:
		return fmt.Errorf("%w: an RMAPath that answers nothing", status.Protocol)
	case p.over:
		return nil
	case f.Plaintext != p.ours.Plaintext:
		c.link.spawn(func() { c.refuseRMA(p, errMixed) })
		return nil
	}
	p.peer = offer(f)
	over := p.made
	if c.link.dialed {
		c.link.spawn(func() { c.dialRMA(p, f.Token, over) })
	}
	p.settleLocked()
	return nil
}

// dialRMA dials the peer's data port and shows the peer's token.
func (c *conn) dialRMA(p *rmaPath, token path.Token, over <-chan struct{}) {
	s, err := c.dialSocket(token, over)
	if err != nil {
		c.refuseRMA(p, err)
		return
	}
	c.settleRMA(p, s)
}

// settleRMA gives the path its socket.
func (c *conn) settleRMA(p *rmaPath, s *net.TCPConn) bool {
	s.SetDeadline(time.Time{})
	path.Tune(s)
	hold := path.Use
	if p == &c.rma.out {
		hold = path.Hold
	}
	held, err := hold(s)
	var written *path.Written
	if p == &c.rma.out && err == nil {
		before := uint64(1) // the answer to the token
		if c.link.dialed {
			before = uint64(path.GreetingLen)
		}
		written, err = path.CountWritten(held, before)
	}
	p.mu.Lock()
	if err != nil || p.over || p.socket != nil || p.ours == nil {
		p.mu.Unlock()
		if s.Close(); held != nil {
			held.Close()
		}
		if err != nil {
			c.refuseRMA(p, fmt.Errorf("%w: %w", err, status.NotSupp))
		}
		return false
	}
	defer p.mu.Unlock()
	p.socket, p.since, p.written = held, time.Now(), written
	if p == &c.rma.in {
		o := path.RMAOptions{Client: c.link.dialed, Plaintext: p.ours.Plaintext,
			Binding: p.binding(c.link.dialed), Peer: path.Hash(p.peer.Key), Taken: p.took}
		c.link.spawn(func() { c.serveRMA(s, o) })
		return true
	}
	p.settleLocked()
	return true
}

// refuseRMA ends the path, or its making, for both ends.
func (c *conn) refuseRMA(p *rmaPath, why error) {
	if c.endRMA(p, why) {
		c.say(wire.NoRMAPath{Answer: p == &c.rma.in, Reason: why.Error()}.AppendTo(nil))
	}
}

// onNoRMAPath handles the peer's NoRMAPath.
func (c *conn) onNoRMAPath(f wire.NoRMAPath) {
	p := &c.rma.in
	if f.Answer {
		p = &c.rma.out
	}
	c.endRMA(p, fmt.Errorf("the peer's node says: %s: %w", attach.CleanCause(f.Reason), status.NotSupp))
}

// endRMAPaths ends both paths of the connection.
func (c *conn) endRMAPaths() {
	c.endRMA(&c.rma.out, nil)
	c.endRMA(&c.rma.in, nil)
}

// endRMA shuts the path down at once, and reports whether this was the call that did it.
func (c *conn) endRMA(p *rmaPath, why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.over, p.why = true, why
	if p.ours != nil {
		c.link.n.paths.forget(p.ours.Token)
		c.link.n.paths.left()
		if p.made != nil && !p.isMade() { // else it is closed
			close(p.made)
		}
	}
	if p.gone != nil {
		close(p.gone)
	}
	p.movedLocked()
	if p.socket != nil {
		c.link.n.counters.paths.carried(p.socket.Moved())
		p.socket.Shutdown()
		p.socket.Close()
		p.socket, p.written = nil, nil
	}
	if p.freed != nil {
		c.link.n.work.run(p.freed) // not here: it takes locks of its own
	}
	return true
}

// whyNot returns the recorded reason why there is no path; nil: none is recorded.
func (p *rmaPath) whyNot() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

// passed returns the frame that reports to the peer how much of this end's RMA path comes before
// an answer (wire.RMAPassed); nil if there is none. If that is not known it ends the connection
// and reports false: then nothing is to be sent behind it. The caller holds conn.mu.
func (c *conn) passed() (frame []byte, ok bool) {
	p := &c.rma.out
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == nil {
		return nil, true
	}
	n, err := p.written.Bytes()
	if err != nil {
		c.link.spawn(func() { c.fail("RMA path: " + err.Error()) })
		return nil, false
	}
	return wire.RMAPassed{Bytes: n}.AppendTo(nil), true
}

// passAnswers puts an RMAPassed frame before each queued answer that comes behind RMA path
// operations. The caller holds conn.mu.
func (c *conn) passAnswers() {
	for s := c.core.NextBehind(); s != nil; s = c.core.NextBehind() {
		frame, ok := c.passed()
		if !ok {
			c.ops.stream.Cancel()
			c.core.Break()
			return
		}
		c.core.Precede(s, frame)
	}
}

// took notes how much of the socket of in has been applied.
func (p *rmaPath) took(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = bytes
	p.movedLocked()
}

// goesOn records progress of an operation that is not applied yet.
func (p *rmaPath) goesOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.movedLocked()
}

func (p *rmaPath) movedLocked() {
	if p.moved != nil {
		close(p.moved)
		p.moved = nil
	}
}

// passTime is how long the reader of the operations stream waits for operations that the
// peer's application has written to its RMA path, without progress.
var passTime = 10 * time.Second

var errNotPassed = errors.New("the operations that the peer's application has written to its RMA path do not come")

// onRMAPassed waits until the peer's operations in the first n bytes of its RMA path have
// been applied, or the path has ended: then the connection has ended or is about to.
func (c *conn) onRMAPassed(n uint64) error {
	p := &c.rma.in
	late := time.NewTimer(passTime)
	defer late.Stop()
	for {
		p.mu.Lock()
		switch {
		case p.peer == nil:
			p.mu.Unlock()
			return fmt.Errorf("%w: RMAPassed without an RMA path", status.Protocol)
		case p.over || p.taken >= n:
			p.mu.Unlock()
			return nil
		}
		if p.moved == nil {
			p.moved = make(chan struct{})
		}
		moved := p.moved
		p.mu.Unlock()
		late.Reset(passTime)
		select {
		case <-moved:
		case <-late.C:
			c.fail(errNotPassed.Error())
			return errNotPassed
		}
	}
}

// servesRMA reports whether this node applies operations of the peer that do not come
// over the link.
func (c *conn) servesRMA() bool {
	p := &c.rma.in
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peer != nil && !p.over
}

// awaitApplied waits until no memory is used any more for an operation that came through
// the peer's RMA path and began before.
func (c *conn) awaitApplied() {
	c.rma.applying.Lock()
	defer c.rma.applying.Unlock()
}
