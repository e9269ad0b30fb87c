package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// rmaPathAfter is how many RMA operations of a connection go through the node before the endpoint
// asks for a path.
const rmaPathAfter = 4

// A farPath carries an endpoint's operations on the windows of a peer on another node from this
// process to that node. Requests are numbered in the order of writing. Answers come in the same
// order, for the requests that have one, and the call that waits for an answer reads it.
type farPath struct {
	e    *endpoint
	conn *path.Conn

	issued atomic.Uint64 // number of the last request; changed with send held

	send    sync.Mutex // guards the fields below; held while requests are written
	tickets uint64     // answers requested so far
	buf     []byte     // of requests and small payloads; reused

	mu        sync.Mutex  // guards the fields below
	changed   sync.Cond   // reading has risen, the path is broken, or an answer is unclaimed again
	reading   uint64      // the ticket of the next answer
	unclaimed []unclaimed // in the order of their tickets
	done      uint64      // all requests up to this number have ended
	bad       uint64      // the first request with a failure that fences report; 0: none
	badCode   status.Code
	err       error // the path is broken

	// Owned by the reader of the next answer: its head, and the number of bytes read of it.
	head [path.RMAAnswerLen]byte
	got  int
}

// smallPayload, in bytes, fits into one write and one TLS record with its request.
const smallPayload = 16<<10 - 3*path.RMARequestLen

// joinRMAPath asks for the path. On failure all operations still go through the node, which knows
// the reason.
func (e *endpoint) joinRMAPath() {
	key, err := processKey()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(e.open)
	defer cancel()
	var m proto.PathBody
	f, err := e.request(ctx, request{op: proto.OpRMAPath, body: &proto.PathKeyBody{Key: key.Hash()}, ended: status.Reset}, &m)
	switch {
	case errors.Is(err, shm.ErrDescriptorLost):
		e.noRMAPath(ctx, false, err)
	case proto.Passes(err):
		e.mu.Lock()
		e.far.wants.pause.begin()
		e.far.wants.asking = false
		e.mu.Unlock()
	}
	if err != nil || f == nil {
		return
	}
	conn, err := path.New(ctx, f, path.Options{
		Client: m.Flags&proto.PathClient != 0, Plaintext: m.Flags&proto.PathPlaintext != 0,
		Binding: m.Binding, Key: key, Peer: m.Peer, Changed: func() {},
	})
	if err == nil {
		err = beginFar(ctx, conn)
	}
	if err != nil {
		e.noRMAPath(ctx, false, err)
		return
	}
	p := &farPath{e: e, conn: conn}
	p.changed.L = &p.mu
	if !e.installFar(p) {
		conn.Close()
	}
}

// beginFar starts this end's direction of conn, and waits until the node at the other end has
// started its own. It closes conn if it fails.
func beginFar(ctx context.Context, conn *path.Conn) error {
	conn.Begin(0)
	if _, err := conn.Write(ctx, nil); err != nil { // at once: the node gives up a path that does not start
		conn.Close()
		return err
	}
	select {
	case <-conn.Started():
	case <-ctx.Done():
		conn.Close()
		return ctx.Err()
	}
	if start, ok := conn.Start(); !ok || start != 0 {
		conn.Close()
		return path.ErrRMA
	}
	return nil
}

// noRMAPath reports to the node that there is no path here; used: operations may be lost.
func (e *endpoint) noRMAPath(ctx context.Context, used bool, why error) {
	in := &proto.JoinedBody{Why: why.Error()}
	if used {
		in.OK = 1
	}
	e.ask(ctx, proto.OpNoRMAPath, in, nil)
}

// installFar makes p the endpoint's; false if the endpoint is closed.
func (e *endpoint) installFar(p *farPath) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.far.path.Store(p)
	return true
}

// finishFar closes the path. The endpoint is closed, and no call uses the path.
func (e *endpoint) finishFar() {
	if p := e.far.path.Load(); p != nil {
		_ = p.conn.Close()
	}
}

// A farCount counts an endpoint's operations until it asks for a path.
type farCount struct {
	n atomic.Int32

	// Guarded by the endpoint's mu.
	asking bool    // asked, or never to be asked again
	pause  backoff // after a request that the node could not meet
}

// wantFar counts an operation that goes through the node.
func (e *endpoint) wantFar() {
	w := &e.far.wants
	if !e.far.is.Load() || w.n.Load() < rmaPathAfter && w.n.Add(1) < rmaPathAfter {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && !w.asking && !w.pause.lasts() {
		w.asking = true
		e.wg.Go(e.joinRMAPath)
	}
}

// A farAnswer is the result of a request.
type farAnswer struct {
	code  status.Code
	value uint64 // an atomic's old word
}

// A farRequest is the output of one call: a request, its payload, and possibly a second request.
type farRequest struct {
	path.RMARequest
	payload [][]byte
	length  int // of payload, in bytes
	behind  path.RMARequest
	into    [][]byte // of a read

	parts   [4][]byte
	regions []*shm.Region
}

// write writes q, and returns the number of its last request and the ticket of its answer, if it
// has one.
func (p *farPath) write(q *farRequest) (number, ticket uint64, err error) {
	p.send.Lock()
	defer p.send.Unlock()
	if err := p.broken(); err != nil {
		return 0, 0, err
	}
	answer := q.WantsAnswer() || q.behind.WantsAnswer()
	leaves := !answer && p.roomForUnclaimed()
	q.Number = p.issued.Add(1)
	first := answering(q.RMARequest, leaves && q.behind.Kind == 0)
	b := first.AppendTo(p.buf[:0])
	rest := q.payload
	if q.length <= smallPayload {
		for _, part := range rest {
			b = append(b, part...)
		}
		rest = nil
	} else { // a full record, and the rest without copying
		n := min(len(rest[0]), smallPayload)
		b = append(b, rest[0][:n]...)
		rest[0] = rest[0][n:]
	}
	if rest != nil {
		err = p.push(b)
		for _, part := range rest {
			if err == nil && len(part) > 0 {
				err = p.push(part)
			}
		}
		b = b[:0]
	}
	if q.behind.Kind != 0 {
		q.behind.Number = p.issued.Add(1)
		behind := answering(q.behind, leaves)
		b = behind.AppendTo(b)
	}
	if err == nil && len(b) > 0 {
		err = p.push(b)
	}
	p.buf = b[:0]
	if err != nil {
		return 0, 0, p.breaks(err)
	}
	number = p.issued.Load()
	if answer || leaves {
		ticket = p.tickets
		p.tickets++
	}
	if leaves {
		p.leave(unclaimed{number, ticket})
	}
	return number, ticket, nil
}

func (p *farPath) push(b []byte) error {
	_, err := p.conn.Write(context.Background(), b)
	return err
}

// breaks records that the path is broken, and returns the reason.
func (p *farPath) breaks(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.changed.Broadcast()
	return p.err
}

func (p *farPath) broken() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// await waits for the answer with that ticket, to request number, and for its data if into is not
// nil. It reads unclaimed answers before it.
func (p *farPath) await(number, ticket uint64, into [][]byte) (farAnswer, error) {
	p.mu.Lock()
	for p.reading != ticket && p.err == nil {
		o, ok := p.claim()
		if !ok {
			p.changed.Wait()
			continue
		}
		p.mu.Unlock()
		_, _ = p.take(o.number, nil) // the check below sees a broken path
		p.mu.Lock()
	}
	err := p.err
	p.mu.Unlock()
	var a farAnswer
	if err == nil {
		a, err = p.take(number, into)
	}
	if err != nil {
		return farAnswer{}, p.e.lost(err)
	}
	return a, nil
}

// take reads the next answer, to request number. The caller has claimed it.
func (p *farPath) take(number uint64, into [][]byte) (farAnswer, error) {
	a, err := p.read(number, into)
	if err != nil {
		return farAnswer{}, p.breaks(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading++
	p.done = max(p.done, number)
	if a.Bad != 0 && p.bad == 0 {
		p.bad, p.badCode = a.Bad, status.Code(a.BadCode)
	}
	p.changed.Broadcast()
	return farAnswer{status.Code(a.Code), a.Value}, nil
}

// read reads the answer to request number. The caller is the one reader.
func (p *farPath) read(number uint64, into [][]byte) (a path.RMAAnswer, err error) {
	for {
		if err := p.fillHead(context.Background()); err != nil {
			return a, err
		}
		p.got = 0
		if a, err = path.ParseRMAAnswer(&p.head); err != nil {
			return a, err
		}
		if a.Number != number || a.Kind == path.RMAData && into == nil {
			return a, path.ErrRMA
		}
		if a.Kind == path.RMADone {
			if a.Code == 0 && into != nil { // a read without data in its answer
				return a, path.ErrRMA
			}
			return a, nil
		}
		if into, err = p.fillParts(into, a.Value); err != nil {
			return a, err
		}
		if last := a.Flags&path.RMALast != 0; last != (len(into) == 0) {
			return a, path.ErrRMA
		} else if last {
			a.Value = 0
			return a, nil
		}
	}
}

// fillParts reads n bytes into parts, and returns the unfilled rest of parts.
func (p *farPath) fillParts(parts [][]byte, n uint64) ([][]byte, error) {
	for n > 0 {
		if len(parts) == 0 {
			return nil, path.ErrRMA
		}
		k := min(n, uint64(len(parts[0])))
		if err := p.fill(parts[0][:k]); err != nil {
			return nil, err
		}
		if parts[0] = parts[0][k:]; len(parts[0]) == 0 {
			parts = parts[1:]
		}
		n -= k
	}
	return parts, nil
}

// fillHead reads the head of the next answer; bytes read before ctx was done are kept.
func (p *farPath) fillHead(ctx context.Context) error {
	for p.got < len(p.head) {
		n, err := p.conn.Read(ctx, p.head[p.got:])
		if p.got += n; err != nil {
			return err
		}
	}
	return nil
}

func (p *farPath) fill(b []byte) error {
	for len(b) > 0 {
		n, err := p.conn.Read(context.Background(), b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// ask performs a request without data, and waits for its answer until ctx is done. It needs a
// goroutine only if it would have to wait for something other than its answer.
func (p *farPath) ask(ctx context.Context, r path.RMARequest) (farAnswer, error) {
	if ctx.Done() == nil {
		return p.askNow(r)
	}
	number, ticket, ok, err := p.tryWrite(r)
	if err != nil {
		return farAnswer{}, p.e.lost(err)
	}
	if !ok {
		return p.e.answerUntil(ctx, func() (farAnswer, error) { return p.askNow(r) })
	}
	a, err := p.answer(ctx, number, ticket)
	return a, codeOr(a, err)
}

// answer waits for the answer with that ticket, which has no data, until ctx is done.
func (p *farPath) answer(ctx context.Context, number, ticket uint64) (farAnswer, error) {
	await := func() (farAnswer, error) { return p.await(number, ticket, nil) }
	if ctx.Done() == nil || p.comesTo(ctx, ticket) {
		return await()
	}
	a, err := p.e.answerUntil(ctx, await)
	if errors.Is(err, status.BadFD) { // closed: no call reads this answer or a later one
		p.breaks(err)
	}
	return a, err
}

// comesTo reads up to the head of the answer with that ticket, if no other call has to read before
// that and ctx is not done.
func (p *farPath) comesTo(ctx context.Context, ticket uint64) bool {
	for {
		p.mu.Lock()
		mine := p.reading == ticket
		o, ok := p.claim()
		p.mu.Unlock()
		if !mine && !ok {
			return false
		}
		if p.fillHead(ctx) != nil && ctx.Err() != nil { // take reports a broken path
			if ok {
				p.giveBack(o)
			}
			return false
		}
		if mine {
			return true
		}
		if _, err := p.take(o.number, nil); err != nil {
			return true
		}
	}
}

// answerUntil is until for f's answer. After ctx is done f continues, and its answer is dropped.
func (e *endpoint) answerUntil(ctx context.Context, f func() (farAnswer, error)) (farAnswer, error) {
	var late farAnswer
	if err := e.until(ctx, func() (err error) { late, err = f(); return err }); err != nil {
		return farAnswer{}, err
	}
	return late, nil
}

// askNow is ask without a ctx.
func (p *farPath) askNow(r path.RMARequest) (farAnswer, error) {
	q := newFar()
	defer q.free()
	q.RMARequest = r
	number, ticket, err := p.write(q)
	if err != nil {
		return farAnswer{}, p.e.lost(err)
	}
	a, err := p.await(number, ticket, nil)
	return a, codeOr(a, err)
}

// codeOr returns err, or the code with which a's request was refused.
func codeOr(a farAnswer, err error) error {
	if err == nil && a.code != status.OK {
		return a.code
	}
	return err
}

// tryWrite writes r, which has an answer, if that does not block.
func (p *farPath) tryWrite(r path.RMARequest) (number, ticket uint64, ok bool, err error) {
	if !p.send.TryLock() {
		return 0, 0, false, nil
	}
	defer p.send.Unlock()
	if err := p.broken(); err != nil {
		return 0, 0, false, err
	}
	r.Number = p.issued.Load() + 1
	p.buf = r.AppendTo(p.buf[:0])
	n, err := p.conn.TryWrite(p.buf)
	switch {
	case err != nil:
		return 0, 0, false, p.breaks(err)
	case n == 0:
		return 0, 0, false, nil
	}
	p.issued.Store(r.Number)
	ticket = p.tickets
	p.tickets++
	return r.Number, ticket, true, nil
}

// flushed waits until every request up to number has ended, or ctx is done.
func (p *farPath) flushed(ctx context.Context, number uint64) error {
	p.mu.Lock()
	done, err := p.done >= number, p.err
	var o unclaimed
	var ok bool
	if !done {
		o, ok = p.claimFrom(number)
	}
	p.mu.Unlock()
	switch {
	case err != nil:
		return p.e.lost(err)
	case done:
		return nil
	case ok:
		_, err := p.answer(ctx, o.number, o.ticket)
		return err
	}
	_, err = p.ask(ctx, path.RMARequest{Kind: path.RMANop, Flags: path.RMAWantAnswer})
	return err
}

// last returns the number of the last request, which may still be being written: a call that must
// wait for the write does so elsewhere, with its ctx.
func (p *farPath) last() uint64 { return p.issued.Load() }

// verdict is the status that fences report of the requests up to number.
func (p *farPath) verdict(number uint64) status.Code {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bad != 0 && p.bad <= number {
		return p.badCode
	}
	return status.OK
}

// lost maps a failure of the path: the connection has ended, or ends now.
func (e *endpoint) lost(err error) error {
	return e.brokenBy(err, func() {
		ctx, cancel := e.c.patient()
		defer cancel()
		e.noRMAPath(ctx, true, err)
	})
}

var fars = sync.Pool{New: func() any { return new(farRequest) }}

func newFar() *farRequest { return fars.Get().(*farRequest) }

// free releases the regions of q, and q.
func (q *farRequest) free() {
	for _, r := range q.regions {
		r.Release()
	}
	clear(q.regions)
	clear(q.parts[:])
	*q = farRequest{regions: q.regions[:0]}
	fars.Put(q)
}
