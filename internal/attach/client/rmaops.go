package client

import (
	"context"
	"math"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// The operations of an endpoint on the windows of a peer on another node, through its RMA path. As
// with direct access, only operations that are certainly valid take it: the node has described the
// windows under the endpoint's epoch. All others go through the node, after the operations on the
// path.
//
// A call that need not wait for its operation checks the epoch again once the bytes are in the
// socket. If the epoch is unchanged, the node has sent the peer nothing that belongs after them, and
// will do so only once the peer's node has applied them: see RMAPassed in wire/SPEC.md. Otherwise
// the call waits for the result of its operation.

// leaveFar orders an operation through the node after those on the path.
func (e *endpoint) leaveFar() error {
	p := e.far.path.Load()
	if p == nil {
		e.wantFar()
		return nil
	}
	return p.flushed(context.Background(), p.last())
}

// A farView is the epoch under which an operation has found its windows.
type farView struct {
	direct *direct
	epoch  uint64
}

// changed reports whether the windows may have changed since.
func (v farView) changed() bool { return v.direct.word.Load() != v.epoch }

// begin looks for the peer's windows as direct.begin does. If ok, direct.mu is held.
func (p *farPath) begin(ctx context.Context, roff, n int64, flags rma.Flags, need rma.Prot) (v farView, ok bool) {
	d := &p.e.direct
	ws := d.beginAt(ctx, roff, n, flags, need)
	if ws == nil {
		return v, false
	}
	return farView{d, ws[0].epoch}, true
}

// writes makes q a write of its payload.
func (q *farRequest) writes(n, roff int64, flags rma.Flags) {
	q.length = int(n)
	q.RMARequest = path.RMARequest{Kind: path.RMAWrite, Offset: uint64(roff), Length: uint64(n)}
	if flags&rma.Ordered != 0 {
		q.Flags |= path.RMAOrdered
	}
	if flags&rma.Sync != 0 {
		q.Flags |= path.RMAWantAnswer
	}
}

// do performs q: with RMAWantAnswer it waits for the result. Without, an error still is q's.
func (p *farPath) do(q *farRequest, v farView) error {
	number, ticket, err := p.write(q)
	if err != nil {
		return p.e.lost(err)
	}
	if q.WantsAnswer() {
		a, err := p.await(number, ticket, nil)
		return codeOr(a, err)
	}
	if !v.changed() {
		return nil
	}
	about := newFar()
	defer about.free()
	about.RMARequest = path.RMARequest{Kind: path.RMANop, Flags: path.RMAWantAnswer, Offset: q.Number, Length: number - q.Number + 1}
	if number, ticket, err = p.write(about); err != nil {
		return p.e.lost(err)
	}
	a, err := p.await(number, ticket, nil)
	return codeOr(a, err)
}

// get reads n bytes at roff into q's memory, and waits for them.
func (p *farPath) get(q *farRequest, n, roff int64) error {
	q.RMARequest = path.RMARequest{Kind: path.RMARead, Offset: uint64(roff), Length: uint64(n)}
	number, ticket, err := p.write(q)
	if err != nil {
		return p.e.lost(err)
	}
	a, err := p.await(number, ticket, q.into)
	return codeOr(a, err)
}

func atomicRequest(a rma.Atomic) path.RMARequest {
	return path.RMARequest{Kind: path.RMAAtomic, Op: uint8(a.Op), Width: a.Width,
		Offset: uint64(a.Offset), Length: a.Operand, Compare: a.Compare}
}

func (p *farPath) atomic(ctx context.Context, a rma.Atomic) (old uint64, done bool, err error) {
	if rma.CheckAtomic(a) != nil || ctx.Err() != nil {
		return 0, false, nil
	}
	v, ok := p.begin(ctx, a.Offset, int64(a.Width), 0, rma.ProtRead|rma.ProtWrite)
	if !ok {
		return 0, false, nil
	}
	v.direct.mu.Unlock()
	r := atomicRequest(a)
	r.Flags = path.RMAWantAnswer
	got, err := p.ask(ctx, r)
	return got.value, true, err
}

func (p *farPath) postAtomic(a rma.Atomic) (done bool, err error) {
	if rma.CheckAtomic(a) != nil {
		return false, nil
	}
	q := newFar()
	defer q.free()
	v, ok := p.begin(context.Background(), a.Offset, int64(a.Width), 0, rma.ProtRead|rma.ProtWrite)
	if !ok {
		return false, nil
	}
	v.direct.mu.Unlock()
	q.RMARequest = atomicRequest(a)
	return true, p.do(q, v)
}

// until runs f, and waits for it until ctx is done. f ends with the endpoint.
func (e *endpoint) until(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	result := make(chan error, 1)
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return status.BadFD
	}
	e.wg.Go(func() { result <- f() })
	e.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ended(ctx)
	}
}

// farMark marks a mark over the operations of the path; the lower bits are the number of the last.
const farMark = 1 << 63

// mark returns a mark over all operations of this end.
func (p *farPath) mark() (fence.Mark, error) {
	n := p.last()
	d := &p.e.direct
	d.mu.Lock()
	here := d.alive() && d.settled()
	d.mu.Unlock()
	switch {
	case here && n == 0:
		return nothingBegun, nil
	case here:
		return fence.Mark{Side: fence.InitSelf, Seq: farMark | n}, nil
	}
	if err := p.flushed(context.Background(), n); err != nil {
		return fence.Mark{}, err
	}
	m, err := d.nodeMark(context.Background(), fence.InitSelf)
	if err == nil && m == nothingBegun && n > 0 { // none began in the node, but some did on the path
		m.Seq = farMark | n
	}
	return m, err
}

// wait waits until the operations that m covers have ended.
func (p *farPath) wait(ctx context.Context, m fence.Mark) error {
	d := &p.e.direct
	if m.Seq&farMark == 0 {
		if d.wait(m) {
			return nil
		}
		err := d.nodeWait(ctx, m)
		if err == nil && m != nothingBegun { // it may cover any operation of the path
			if code := p.verdict(math.MaxUint64); code != status.OK {
				return code
			}
		}
		return err
	}
	n := m.Seq &^ farMark
	if n > p.last() {
		return status.Invalid
	}
	if err := p.flushed(ctx, n); err != nil {
		return err
	}
	if code := p.verdict(n); code != status.OK {
		return code
	}
	d.mu.Lock()
	alive := d.alive()
	d.mu.Unlock()
	if alive {
		return nil
	}
	return d.nodeWait(ctx, nothingBegun) // the node knows whether the connection has ended
}

// signal stores the values of s, after every operation on the path.
func (p *farPath) signal(s fence.Signal) (done bool, err error) {
	if s.By != fence.InitSelf || fence.CheckSignal(s) != nil {
		return false, nil
	}
	q := newFar()
	defer q.free()
	here, v, ok := p.beginSignal(q, s)
	if !ok {
		return false, nil
	}
	if code := p.verdict(math.MaxUint64); code != status.OK {
		return true, code
	}
	if s.Where&fence.SignalLocal != 0 {
		if err := p.flushed(context.Background(), p.last()); err != nil {
			return true, err
		}
		if code := p.verdict(math.MaxUint64); code != status.OK {
			return true, code
		}
		if err := store8(here.region, here.at(s.LocalOffset), s.LocalValue); err != nil {
			return true, err
		}
	}
	if s.Where&fence.SignalRemote == 0 {
		return true, nil
	}
	q.RMARequest = path.RMARequest{Kind: path.RMASignal, Offset: uint64(s.RemoteOffset), Length: s.RemoteValue}
	return true, p.do(q, v)
}

// beginSignal finds the target of s: here is a copy of this end's window, which q retains.
func (p *farPath) beginSignal(q *farRequest, s fence.Signal) (here window, v farView, ok bool) {
	d := &p.e.direct
	if s.Where&fence.SignalRemote != 0 {
		ws := d.beginAt(context.Background(), s.RemoteOffset, 8, 0, rma.ProtWrite)
		if ws == nil {
			return here, v, false
		}
		v, ok = farView{d, ws[0].epoch}, len(ws) == 1 // a word lies in one window
	} else {
		d.mu.Lock()
		ok = d.alive()
	}
	defer d.mu.Unlock()
	if !ok || !d.settled() {
		return here, v, false
	}
	if s.Where&fence.SignalLocal == 0 {
		return here, v, true
	}
	own := d.own.find(s.LocalOffset, 8, rma.ProtWrite)
	if len(own) != 1 {
		return here, v, false
	}
	own[0].region.Retain()
	q.regions = append(q.regions, own[0].region)
	return *own[0], v, true
}
