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

// The versions of the link's protocol that have RMAPath, and its further attempts.
const (
	rmaVersion      = 4
	rmaAgainVersion = 7
)

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
//
// One that is over for a passing reason may be asked for again: by out's node once the peer's
// NoRMAPath has come, of which there is one in each such attempt. ours distinguishes attempts.
type rmaPath struct {
	anyPath                // its mu is innermost
	again    bool          // over, and another attempt may follow
	answered bool          // of out: the peer's NoRMAPath has come
	written  *path.Written // of out
	taken    uint64        // of in: bytes of the socket whose operations have been applied
	moved    chan struct{} // closed when taken rises or may soon; nil while no goroutine waits
	gone     chan struct{} // of in: closed when it is over
}

// rmaKey is the key of this process's ends of RMA paths that it serves.
var rmaKey = sync.OnceValues(path.NewKey)

// RMAPath implements attach.NodeEndpoint.
func (e *endpoint) RMAPath(ctx context.Context, key path.Hash, freed func()) (attach.PathSocket, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		freed()
		return attach.PathSocket{}, err
	}
	var made <-chan struct{}
	if err = c.mayHavePath("RMA paths", rmaVersion); err == nil {
		made, err = c.askRMA(key, freed)
	}
	if err != nil {
		freed()
		c.rma.out.notAsked(err)
		return attach.PathSocket{}, err
	}
	return c.awaitRMA(ctx, made)
}

// notAsked records why the path was not asked for, unless it had been.
func (p *rmaPath) notAsked(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours == nil && !p.over {
		p.why = why
	}
}

// NoRMAPath implements attach.NodeEndpoint.
func (e *endpoint) NoRMAPath(why string, used bool) {
	c, err := e.connection(core.CallMemory)
	switch {
	case err != nil:
	case used:
		c.fail("RMA path: " + why)
	default:
		c.refuseRMA(&c.rma.out, nil, fmt.Errorf("%s: %w", why, status.NotSupp))
	}
}

// FarWindow implements attach.NodeEndpoint.
func (e *endpoint) FarWindow(roff int64) (attach.PeerWindow, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return attach.PeerWindow{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.invalidation.ended() { // as in peerWindow
		return attach.PeerWindow{}, status.Reset
	}
	if c.rma.withdrawing { // subscribers were notified already, and would not be again
		return attach.PeerWindow{}, status.Again
	}
	w, err := c.core.AnnouncedAt(roff)
	return attach.PeerWindow{Offset: w.Offset, Length: w.Length, Prot: w.Prot}, err
}

// renew begins another attempt. The caller holds mu.
func (p *rmaPath) renew() {
	p.ours, p.peer, p.why, p.silence = nil, nil, nil, path.Silence{}
	p.over, p.again, p.answered, p.taken = false, false, false, 0
}

// askRMA asks the peer's node to serve an RMA path, and returns a channel that is closed
// once it is made, or will not be. It takes freed if it returns no error.
func (c *conn) askRMA(key path.Hash, freed func()) (<-chan struct{}, error) {
	p, n := &c.rma.out, c.link.n
	ask := wire.RMAPath{Token: path.NewToken(), Key: key, Plaintext: n.cfg.Paths.Plaintext}
	p.mu.Lock()
	var err error
	switch {
	case p.again && p.answered && !p.tooSoon():
		p.renew()
	case p.again:
		err = fmt.Errorf("the attempt before has just ended: %w", status.Again)
	case p.ours != nil:
		err = fmt.Errorf("the connection has asked for its RMA path: %w", status.InUse)
	case p.over:
		err = p.reason()
	}
	if err == nil {
		err = n.paths.admit(n.cfg.Paths.Max)
	}
	if err != nil {
		p.mu.Unlock()
		return nil, err
	}
	ours, made := offer(ask), make(chan struct{})
	p.ours, p.made, p.freed, p.why = ours, made, freed, nil
	if !c.link.dialed {
		n.paths.expect(ask.Token, func(s *net.TCPConn) bool { return c.settleRMA(p, ours, s) })
	}
	p.mu.Unlock()
	c.sendFrame(ask.AppendTo(nil))
	return made, nil
}

// awaitRMA waits until the path is made and returns the application's end of it.
func (c *conn) awaitRMA(ctx context.Context, made <-chan struct{}) (attach.PathSocket, error) {
	p := &c.rma.out
	select {
	case <-made:
	case <-time.After(pathJoin):
		c.refuseRMA(p, nil, fmt.Errorf("the peer's node does not answer: %w", status.NotSupp))
	case <-ctx.Done():
		c.refuseRMA(p, nil, fmt.Errorf("the application does not wait: %w", status.NotSupp))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil || p.over {
		return attach.PathSocket{}, p.reason()
	}
	return p.handOut(c.link.dialed)
}

// onRMAPath handles the peer's RMAPath.
func (c *conn) onRMAPath(f wire.RMAPath) error {
	if f.Answer {
		return c.onRMAAnswer(f)
	}
	p := &c.rma.in
	p.mu.Lock()
	if p.again && !p.tooSoon() {
		p.renew()
	}
	over, second := p.over, p.peer != nil
	if !over && !second {
		p.peer, p.gone = offer(f), make(chan struct{})
	}
	p.mu.Unlock()
	switch {
	case over: // it has crossed this end's NoRMAPath, or comes too soon
		return nil
	case second:
		return fmt.Errorf("%w: a second RMAPath", status.Protocol)
	}
	if err := c.acceptRMA(f); err != nil {
		c.refuseRMA(p, nil, err)
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
	answer := wire.RMAPath{Token: path.NewToken(), Key: key.Hash(), Plaintext: f.Plaintext, Answer: true}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		n.paths.left()
		return nil
	}
	ours, over := offer(answer), p.gone
	p.ours = ours
	if !c.link.dialed {
		n.paths.expect(answer.Token, func(s *net.TCPConn) bool { return c.settleRMA(p, ours, s) })
	}
	p.mu.Unlock()
	c.sendFrame(answer.AppendTo(nil))
	if c.link.dialed {
		c.link.spawn(func() { c.dialRMA(p, ours, f.Token, over) })
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
		c.link.spawn(func() { c.refuseRMA(p, nil, errMixed) })
		return nil
	}
	p.peer = offer(f)
	ours, over := p.ours, p.made
	if c.link.dialed {
		c.link.spawn(func() { c.dialRMA(p, ours, f.Token, over) })
	}
	p.settleLocked()
	return nil
}

// dialRMA dials the peer's data port and shows the peer's token.
func (c *conn) dialRMA(p *rmaPath, ours *wire.Path, token path.Token, over <-chan struct{}) {
	s, err := c.dialSocket(token, over)
	if err != nil {
		c.refuseRMA(p, ours, err)
		return
	}
	c.settleRMA(p, ours, s)
}

// settleRMA gives the attempt ours its socket.
func (c *conn) settleRMA(p *rmaPath, ours *wire.Path, s *net.TCPConn) bool {
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
	if err != nil || p.over || p.socket != nil || p.ours != ours {
		p.mu.Unlock()
		if s.Close(); held != nil {
			held.Close()
		}
		if err != nil {
			c.refuseRMA(p, ours, fmt.Errorf("%w: %w", err, status.NotSupp))
		}
		return false
	}
	defer p.mu.Unlock()
	p.socket, p.since, p.written = held, time.Now(), written
	if p == &c.rma.in {
		o := path.RMAOptions{Client: c.link.dialed, Plaintext: p.ours.Plaintext,
			Binding: p.binding(c.link.dialed), Peer: path.Hash(p.peer.Key), Taken: func(bytes uint64) { p.took(ours, bytes) }}
		gone := p.gone
		c.link.spawn(func() { c.serveRMA(s, ours, o, gone) })
		return true
	}
	p.settleLocked()
	return true
}

// refuseRMA ends the attempt ours, or any if that is nil, for both ends.
func (c *conn) refuseRMA(p *rmaPath, ours *wire.Path, why error) {
	if c.endRMA(p, ours, why) {
		c.sendFrame(wire.NoRMAPath{Answer: p == &c.rma.in, Passing: c.repeats(why), Reason: why.Error()}.AppendTo(nil))
	}
}

// repeats reports whether an RMA path that is over for why may be asked for again.
func (c *conn) repeats(why error) bool { return passes(why) && c.link.version >= rmaAgainVersion }

// onNoRMAPath handles the peer's NoRMAPath.
func (c *conn) onNoRMAPath(f wire.NoRMAPath) error {
	why := peerSays(f.Reason, f.Passing)
	if !f.Answer {
		if p := &c.rma.in; c.endRMA(p, nil, why) && c.repeats(why) {
			c.sendFrame(wire.NoRMAPath{Answer: true, Passing: true, Reason: f.Reason}.AppendTo(nil))
		}
		return nil
	}
	p := &c.rma.out
	c.endRMA(p, nil, why)
	p.mu.Lock()
	p.answered, p.failed = true, time.Now() // the peer's is before
	p.mu.Unlock()
	return nil
}

// endRMAPaths ends both paths of the connection.
func (c *conn) endRMAPaths() {
	c.endRMA(&c.rma.out, nil, nil)
	c.endRMA(&c.rma.in, nil, nil)
}

// endRMA shuts the path of the attempt ours, or any if that is nil, down at once, and reports
// whether this was the call that did it.
func (c *conn) endRMA(p *rmaPath, ours *wire.Path, why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ours != nil && p.ours != ours {
		return false
	}
	p.again = c.repeats(why) && (p.again || !p.over)
	if p.over {
		return false
	}
	p.over, p.why, p.failed = true, why, time.Now()
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

// took notes how much of the socket of in's attempt ours has been applied.
func (p *rmaPath) took(ours *wire.Path, bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours == ours {
		p.taken = bytes
		p.movedLocked()
	}
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

// onRMAPassed waits until the peer's operations in the first bytes of its RMA path have
// been applied, or the path has ended: then the connection has ended or is about to.
func (c *conn) onRMAPassed(f wire.RMAPassed) error {
	p := &c.rma.in
	late := time.NewTimer(passTime)
	defer late.Stop()
	for {
		p.mu.Lock()
		switch {
		case p.peer == nil:
			p.mu.Unlock()
			return fmt.Errorf("%w: RMAPassed without an RMA path", status.Protocol)
		case p.over || p.taken >= f.Bytes:
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
