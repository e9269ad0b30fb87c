package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A messagePath carries the messages of a connection to another node, from process to process. As
// with a shared-memory path, both directions begin on the data socket, each switches once its
// sender finds the path ready, and the data socket still carries the end of the connection.
type messagePath struct {
	conn *path.Conn
	// switched is set once the path carries sent bytes; guarded by sending. reading is set once it
	// carries received bytes, over at their end, and torn at an end other than the peer's own;
	// guarded by receiving.
	switched, reading, over, torn atomic.Bool

	suspected sync.Once // of suspect
	finished  bool      // this end's direction has ended in order; guarded by sending
}

// processKey is the key for the paths of this process.
var processKey = sync.OnceValues(path.NewKey)

// joinPath asks for a path and sets up this end of it. On failure the messages stay on the data
// socket; the node knows the reason. It reports whether another attempt may succeed.
func (e *endpoint) joinPath(join func()) (again bool) {
	defer join()
	key, err := processKey()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithCancel(e.open)
	defer cancel()
	var m proto.PathBody
	f, err := e.request(ctx, request{op: proto.OpPath, body: &proto.PathKeyBody{Key: key.Hash()}, ended: status.Reset}, &m)
	if errors.Is(err, shm.ErrDescriptorLost) {
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: proto.ReasonOf(err)}, nil)
	}
	if err != nil || f == nil {
		return proto.Passes(err)
	}
	conn, err := path.New(ctx, f, path.Options{
		Client: m.Flags&proto.PathClient != 0, Plaintext: m.Flags&proto.PathPlaintext != 0,
		Binding: m.Binding, Key: key, Peer: m.Peer, Changed: e.notify,
	})
	if err != nil {
		e.refusePath(ctx, err)
		return true
	}
	p := &messagePath{conn: conn}
	if !e.installPath(p) {
		conn.FinishUnused() // allows an orderly close of the connection
		conn.Close()
		return false
	}
	join()
	e.ask(ctx, proto.OpJoined, &proto.JoinedBody{OK: 1}, nil)
	// CloseWrite may have been called before the path was there. Otherwise do not take the lock: a
	// waiting send may hold it, and the receive has to be woken.
	if e.shutOut.Load() && e.lock(ctx, &e.sending) == nil {
		_ = p.finish(ctx) // the receive returns its error, too
		e.sending.Unlock()
	}
	select {
	case <-conn.Started():
		e.kick()
	case <-e.quit:
	}
	return false
}

// refusePath reports to the node that there is no path here. The peer may have begun to use it once
// this end has reported that it is ready: then the connection ends.
func (e *endpoint) refusePath(ctx context.Context, why error) {
	if errors.Is(why, path.ErrHalf) {
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{OK: 1}, nil)
	}
	e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: why.Error()}, nil)
}

// How long an endpoint waits after a failed attempt to get a path, until its next send: at first,
// and at most. Each pause is four times the previous one.
const (
	pathPause    = time.Second
	pathPauseMax = 4 * time.Minute
)

// A backoff is the time in which an endpoint does not repeat a failed request.
type backoff struct {
	length time.Duration // of the last one
	end    time.Time
}

func (p *backoff) lasts() bool { return time.Now().Before(p.end) }

func (p *backoff) begin() {
	p.length = min(max(4*p.length, pathPause), pathPauseMax)
	p.end = time.Now().Add(p.length)
}

// upgradePathLocked asks for a path in the background, unless the last attempt has just failed and
// the peer does not ask. The caller holds mu.
func (e *endpoint) upgradePathLocked(offered bool) {
	if !offered && e.upgrades.pause.lasts() {
		return
	}
	joined := make(chan struct{})
	e.upgrades.joining, e.upgrades.upgrading = joined, true
	e.wg.Go(func() {
		if !e.joinPath(sync.OnceFunc(func() { close(joined) })) {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.upgrades.pause.begin()
		e.upgrades.upgrading = false
	})
}

// installPath makes p the endpoint's path; false if the endpoint is closed.
func (e *endpoint) installPath(p *messagePath) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.path.Store(p)
	switch {
	case e.c.isLost():
		p.conn.Shutdown()
	case e.ends.reported.Load():
		p.conn.Stop()
	}
	e.watchAll()
	return true
}

// dead reports whether the path has ended before the peer has switched to it.
func (p *messagePath) dead() bool {
	select {
	case <-p.conn.Started():
		_, ok := p.conn.Start()
		return !ok
	default:
		return false
	}
}

// pathOut returns the path if sent bytes go through it, switching to it if possible. The caller
// holds sending.
func (e *endpoint) pathOut() *messagePath {
	p := e.path.Load()
	if p == nil || p.switched.Load() {
		return p
	}
	if p.dead() || e.ends.reported.Load() {
		return nil
	}
	p.conn.Begin(e.moved.sent)
	p.switched.Store(true)
	return p
}

// send is Send through the path.
func (p *messagePath) send(ctx context.Context, b []byte) (int, error) {
	n, err := p.conn.Write(ctx, b)
	return n, pathError(ctx, err)
}

// trySend is TrySend through the path.
func (p *messagePath) trySend(b []byte) (int, error) {
	n, err := p.conn.TryWrite(b)
	return n, pathError(context.Background(), err)
}

// pathError adds a status to an error of a path.
func pathError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return fmt.Errorf("%w: %w", status.Of(err), err)
	}
	return fmt.Errorf("%w: %w", status.Reset, err)
}

// pathIn returns the path if the next bytes come through it. Otherwise it returns how many more
// bytes may come through the data socket, as an upper bound. The caller holds receiving.
func (e *endpoint) pathIn() (p *messagePath, limit uint64, err error) {
	p = e.path.Load()
	if p == nil {
		return nil, unlimited, nil
	}
	if p.reading.Load() {
		return p, 0, nil
	}
	start, ok := p.conn.Start()
	got := e.moved.got.Load()
	switch {
	case !ok:
		return nil, unlimited, nil
	case start < got:
		e.breakPath(errPathStart)
		return nil, 0, fmt.Errorf("%w: the peer's path begins at byte %d, received are %d", status.Reset, start, got)
	case start > got:
		return nil, start - got, nil
	}
	p.reading.Store(true)
	return p, 0, nil
}

// pathIsOn returns the path if received bytes come through it. The caller holds receiving.
func (e *endpoint) pathIsOn() *messagePath {
	if p := e.path.Load(); p != nil && p.reading.Load() && !p.over.Load() {
		return p
	}
	return nil
}

// tryRecv returns the available bytes. The end of the path is not yet the end of the connection:
// the data socket reports that.
func (p *messagePath) tryRecv(b []byte) (int, error) {
	n, err := p.conn.TryRead(b)
	if err == nil && n == 0 {
		return 0, status.Again
	}
	if err != nil {
		p.ends(err)
		err = status.Again
	}
	return n, err
}

// ends records the end of the path's received bytes. Only after the peer's own end can the
// connection have ended in order.
func (p *messagePath) ends(err error) {
	if !errors.Is(err, io.EOF) {
		p.torn.Store(true)
	}
	p.over.Store(true)
}

// lost reports whether bytes of the peer may be missing although its connection has ended in order:
// the path's direction ended abnormally, or it starts at another byte than got, the number received
// through the data socket.
func (p *messagePath) lost(got uint64) bool {
	start, ok := p.conn.Start()
	return p.torn.Load() || ok && !p.reading.Load() && start != got || !ok && !p.conn.EndedWell()
}

// recv waits for at least one byte, or for the end, at which it returns 0.
func (p *messagePath) recv(ctx context.Context, b []byte) (int, error) {
	n, err := p.conn.Read(ctx, b)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return n, pathError(ctx, err)
	}
	if err != nil {
		p.ends(err)
	}
	return n, nil
}

// waitFor waits for the end of c until ctx is done or the endpoint is closed.
func (e *endpoint) waitFor(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-e.quit:
		return status.Reset
	}
}

// pathToCome waits, after the end of the data socket, until it is known whether the peer has
// switched to a path: the peer's bytes there may be in flight. It reports whether there is
// something new to receive.
func (e *endpoint) pathToCome(ctx context.Context) (bool, error) {
	e.mu.Lock()
	joining := e.upgrades.joining
	e.mu.Unlock()
	if joining != nil {
		if err := e.waitFor(ctx, joining); err != nil {
			return false, err
		}
	}
	p := e.path.Load()
	if p == nil || p.reading.Load() {
		return false, nil
	}
	if err := e.waitFor(ctx, p.conn.Started()); err != nil {
		return false, err
	}
	start, ok := p.conn.Start()
	return ok && start == e.moved.got.Load(), nil
}

// mayComeByPath is pathToCome for a non-blocking call; it is also true while that is not known yet.
func (e *endpoint) mayComeByPath() bool {
	more, err := e.pathToCome(noWait)
	return more || err != nil
}

// noWait is the context of a call that does not wait.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// How long the end of a path waits for the notification of its connection's end: a sender waits
// less than a reader, whose peer may have closed in order.
const (
	sendGrace = time.Second
	recvGrace = 5 * time.Second
)

// pathBroken maps a failure of a send through the path: the connection has ended, or ends now.
func (e *endpoint) pathBroken(err error) error {
	if err == nil || canceled(err) {
		return err
	}
	return e.brokenBy(err, func() { e.breakPath(err) })
}

// brokenBy waits for the connection's end, which end makes if it does not come by itself.
func (e *endpoint) brokenBy(err error, end func()) error {
	if !e.endsWithin(sendGrace) {
		end()
	}
	return e.broken(err)
}

// endsWithin waits, d at most, until the connection has ended or the endpoint is closed.
func (e *endpoint) endsWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-e.ends.done:
	case <-e.quit:
	case <-late.C:
		return false
	}
	return true
}

// breakPath makes the node end the connection, whose path is broken.
func (e *endpoint) breakPath(why error) {
	ctx, cancel := e.c.patient()
	defer cancel()
	e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: why.Error()}, nil)
}

var (
	errPathEnded = errors.New("the path of the connection has ended")
	errPathStart = errors.New("the path begins before what came over the link")
)

// suspect starts, once, a goroutine that waits for the end of a connection whose path has ended
// other than by the peer's own end: a poller has no call that waits.
func (e *endpoint) suspect(p *messagePath) {
	p.suspected.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			return
		}
		e.wg.Go(func() {
			if !e.endsWithin(recvGrace) && !e.peerShut() {
				e.breakPath(errPathEnded)
			}
		})
	})
}

// peerShut reports whether the peer has shut down its sending side in order.
func (e *endpoint) peerShut() bool {
	p := e.path.Load()
	data, err := e.socket()
	if err != nil || p.torn.Load() {
		return false
	}
	r, err := data.ready()
	return err == nil && r.RdHup
}

// awaitEnd is data.await after the end of the path: the data socket must end too. After the peer's
// own end that may take long, for example until its operations complete.
func (e *endpoint) awaitEnd(ctx context.Context, data nodeStream) error {
	if !e.path.Load().torn.Load() {
		return data.await(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, recvGrace)
	defer cancel()
	err := data.await(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		e.breakPath(errPathEnded)
		return nil
	}
	return err
}

// interrupt ends the waiting calls of the path.
func (p *messagePath) interrupt() { p.conn.Interrupt() }

// finishPath ends the sending direction, in order unless aborted, and closes the socket. It reports
// false if sent bytes do not arrive. The endpoint is closed: no call uses the path any more.
func (e *endpoint) finishPath(aborted bool) (whole bool) {
	p := e.path.Load()
	if p == nil {
		return true
	}
	whole = true
	if !aborted && !e.ends.reported.Load() && !e.c.isLost() {
		whole = p.finished || e.endPath(p) || !p.switched.Load()
	}
	_ = p.conn.Close()
	return whole
}

// endPath ends the sent bytes of p in order, and reports whether they arrive. The node sends those
// that the socket has no room for, so that a close does not wait for the peer to read. Only where
// the node does not take them this end waits.
func (e *endpoint) endPath(p *messagePath) bool {
	rest, err := p.conn.End()
	if err != nil || len(rest) == 0 || e.leaveRest(rest) == nil {
		return err == nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), pathLinger)
	defer cancel()
	return p.conn.FinishRest(ctx, rest) == nil
}

// leaveRest gives the path's last bytes to the node.
func (e *endpoint) leaveRest(rest []byte) error {
	ctx, cancel := e.c.patient()
	defer cancel()
	for piece := range slices.Chunk(rest, proto.MaxPathRest) {
		q := request{op: proto.OpPathRest, endpoint: e.id, body: &proto.PathRestBody{Bytes: piece}}
		if _, err := e.c.ask(ctx, q, nil); err != nil {
			return err
		}
	}
	return nil
}

// pathLinger bounds how long a close waits for a peer that does not read, where the node does not
// take the rest (SCIF's 10 s).
const pathLinger = 10 * time.Second

// hasMessage reports whether p's socket holds message bytes; true while a call reads it.
func (e *endpoint) hasMessage(p *messagePath) bool {
	if !e.receiving.TryLock() {
		return true
	}
	defer e.receiving.Unlock()
	if p.over.Load() {
		return false
	}
	in, err := p.conn.Peek()
	if err != nil {
		p.ends(err)
	}
	return in
}

// pathEvents corrects ev, the data socket's poll events, for the bytes on the path.
func (e *endpoint) pathEvents(ev attach.Events) attach.Events {
	p := e.path.Load()
	if p == nil {
		return ev
	}
	in, out, ended := p.conn.Ready()
	if ended && ev&(attach.PollHup|attach.PollRdHup) == 0 {
		e.suspect(p)
	}
	start, ok := p.conn.Start()
	if (in || ended) && ok && start == e.moved.got.Load() && e.hasMessage(p) {
		ev |= attach.PollIn
	}
	if ev&attach.PollRdHup != 0 && (e.mayComeByPath() || p.reading.Load() && !p.over.Load()) {
		ev &^= attach.PollRdHup
	}
	if p.switched.Load() && ev&attach.PollHup == 0 {
		if ev &^= attach.PollOut; out {
			ev |= attach.PollOut
		}
	}
	return ev
}
