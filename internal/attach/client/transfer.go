package client

import (
	"context"
	"math"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A transfer is one WriteTo, ReadFrom, VWriteTo or VReadFrom, or the bytes of a put. The first that
// can performs it: the RMA path to a peer on another node, this process with the peer's mapped
// windows, or the node, which decides on everything that is not certainly valid.
type transfer struct {
	write  bool   // to the peer's windows; else from them
	plain  bool   // of memory; else of this end's windows
	memory []byte // n bytes, if plain
	local  int64  // the offset of this end's windows, unless plain
	n      int64
	remote int64
	flags  rma.Flags
}

// needs returns the access that t needs to the peer's windows, and to this end's.
func (t *transfer) needs() (theirs, ours rma.Prot) {
	if t.write {
		return rma.ProtWrite, rma.ProtRead
	}
	return rma.ProtRead, rma.ProtWrite
}

func (e *endpoint) WriteTo(loff, n, roff int64, flags rma.Flags) error {
	return e.transfer(transfer{write: true, local: loff, n: n, remote: roff, flags: flags})
}

func (e *endpoint) ReadFrom(loff, n, roff int64, flags rma.Flags) error {
	return e.transfer(transfer{local: loff, n: n, remote: roff, flags: flags})
}

func (e *endpoint) VWriteTo(p []byte, roff int64, flags rma.Flags) error {
	return e.transfer(transfer{write: true, plain: true, memory: p, n: int64(len(p)), remote: roff, flags: flags})
}

func (e *endpoint) VReadFrom(p []byte, roff int64, flags rma.Flags) error {
	return e.transfer(transfer{plain: true, memory: p, n: int64(len(p)), remote: roff, flags: flags})
}

func (e *endpoint) transfer(t transfer) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.transfer(&t); done {
			return err
		}
	}
	if e.direct.transfer(&t) {
		return nil
	}
	// The node may answer before the transfer has ended.
	posts := e.far.is.Load() && t.flags&rma.Sync == 0
	return e.direct.through(posts, func() error { return e.nodeTransfer(&t) })
}

// nodeTransfer is transfer through the node. It decides which error of a transfer of no bytes comes
// first: of the state, the flags or the length.
func (e *endpoint) nodeTransfer(t *transfer) error {
	op, vop := proto.OpReadFrom, proto.OpVReadFrom
	if t.write {
		op, vop = proto.OpWriteTo, proto.OpVWriteTo
	}
	if t.plain && t.n > 0 {
		return e.nodePieces(vop, t)
	}
	if t.plain {
		if _, err := e.socket(); err != nil {
			return err
		}
	}
	return usePad(func(p *pad) error {
		p.transfer = proto.Transfer{Local: t.local, Len: t.n, Remote: t.remote, Flags: t.flags}
		return e.ask(context.Background(), op, &p.transfer, nil)
	})
}

// nodePieces is nodeTransfer from or to memory. The node checks the whole range of several pieces
// first, so that no piece is transferred if the last one is out of range.
func (e *endpoint) nodePieces(op proto.Op, t *transfer) error {
	if _, err := e.socket(); err != nil {
		return err
	}
	if t.n > proto.MaxStage {
		need, _ := t.needs()
		in := &proto.CheckBody{Remote: t.remote, Len: t.n, Flags: t.flags, Need: need}
		if err := e.ask(context.Background(), proto.OpCheck, in, nil); err != nil {
			return err
		}
	}
	return e.c.memory.stage(t.memory, t.write, func(memory uint32, memOff, done, n int64) error {
		return usePad(func(p *pad) error {
			p.staged = proto.VTransfer{Memory: memory, Flags: t.flags, MemOff: memOff, Len: n, Remote: t.remote + done}
			// Not even Close ends the wait: the node uses the memory until it answers.
			_, err := e.c.ask(context.Background(), request{op: op, endpoint: e.id, body: &p.staged}, nil)
			return err
		})
	})
}

// transfer copies t's bytes, and reports whether it did. If not, the node performs the operation:
// nothing has happened that it cannot repeat.
func (d *direct) transfer(t *transfer) bool {
	need, needHere := t.needs()
	there := d.begin(context.Background(), t.remote, t.n, t.flags, need)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	var here []*window
	if !t.plain {
		if here = d.own.find(t.local, t.n, needHere); here == nil {
			return false
		}
	}
	ordered := t.flags&rma.Ordered != 0 && (t.write || !t.plain) // the owner of memory does not read it before the call returns
	if len(there) == 1 && len(here) <= 1 && !ordered {
		return d.copied(t.copyOne(there[0], here))
	}
	theirs, ours := d.peers(there, t.remote, t.n), d.local(t, here)
	if t.write {
		return d.move(theirs, ours, t.n, ordered)
	}
	return d.move(ours, theirs, t.n, ordered)
}

// copyOne copies between one window of the peer and t's memory, or its one window here: most
// transfers are so small that setting up a byteRange costs more than the copy.
func (t *transfer) copyOne(there *window, here []*window) error {
	theirs, ours := there.bytes(t.remote, t.n), t.memory
	if len(here) == 1 {
		ours = here[0].bytes(t.local, t.n)
	}
	if t.write {
		return shm.Copy(theirs, ours)
	}
	return shm.Copy(ours, theirs)
}

// peers returns the memory of [off, off+n), which lies in ws. It is valid until move.
func (d *direct) peers(ws []*window, off, n int64) (r byteRange) {
	r, d.theirs = rangeOf(d.theirs, ws, off, n)
	return r
}

// local returns t's memory at this end, which lies in here unless it is plain. It is valid until move.
func (d *direct) local(t *transfer, here []*window) (r byteRange) {
	if t.plain {
		return byteRange{first: t.memory}
	}
	r, d.ours = rangeOf(d.ours, here, t.local, t.n)
	return r
}

// transfer performs t on the path, and reports whether it did.
func (p *farPath) transfer(t *transfer) (done bool, err error) {
	need, _ := t.needs()
	q := newFar()
	defer q.free()
	v, ok := p.begin(context.Background(), t.remote, t.n, t.flags, need)
	if !ok {
		return false, nil
	}
	ours := q.here(v.direct, t)
	v.direct.mu.Unlock()
	switch {
	case ours == nil:
		return false, nil
	case t.write:
		q.payload = ours
		q.writes(t.n, t.remote, t.flags)
		return true, p.do(q, v)
	}
	q.into = ours
	return true, p.get(q, t.n, t.remote)
}

// here returns t's memory at this end, whose windows q retains; nil if they do not certainly exist.
// The caller holds direct.mu.
func (q *farRequest) here(d *direct, t *transfer) [][]byte {
	if t.plain {
		return append(q.parts[:0], t.memory)
	}
	_, need := t.needs()
	off, n := t.local, t.n
	ws := d.own.find(off, n, need)
	if ws == nil {
		return nil
	}
	parts := q.parts[:0]
	for _, w := range ws {
		k := min(n, w.end-off)
		parts = append(parts, w.bytes(off, k))
		w.region.Retain()
		q.regions = append(q.regions, w.region)
		off += k
		n -= k
	}
	return parts
}

func (e *endpoint) PutSignal(loff, n int64, p rma.Put) error {
	return e.put(transfer{write: true, local: loff, n: n}, p)
}

func (e *endpoint) VPutSignal(b []byte, p rma.Put) error {
	return e.put(transfer{write: true, plain: true, memory: b, n: int64(len(b))}, p)
}

// put copies t's bytes to p.Offset, and then stores p's word.
func (e *endpoint) put(t transfer, p rma.Put) error {
	if path := e.far.path.Load(); path != nil {
		if done, err := path.put(&t, p); done {
			return err
		}
	}
	if e.direct.put(&t, p) {
		return nil
	}
	return e.direct.through(true, func() error { return e.nodePut(&t, p) })
}

// nodePut is put through the node. Of a put of no bytes the node decides which error comes first:
// the state's or the argument's.
func (e *endpoint) nodePut(t *transfer, p rma.Put) error {
	if t.plain {
		if _, err := e.socket(); err != nil {
			return err
		}
	}
	if t.plain && t.n > 0 && rma.CheckPut(p) == nil {
		return e.putPieces(t.memory, p)
	}
	in := &proto.PutBody{Put: p}
	if !t.plain {
		in.Local, in.Len = t.local, t.n
	}
	return e.ask(context.Background(), proto.OpPutSignal, in, nil)
}

// putPieces transfers in pieces. With the first piece the node checks all ranges; only the last
// piece stores the word.
func (e *endpoint) putPieces(b []byte, p rma.Put) error {
	total := int64(len(b))
	return e.c.memory.stage(b, true, func(memory uint32, memOff, done, n int64) error {
		piece := p
		piece.Offset += done
		piece.More += min(total-done-n, math.MaxInt64-p.More)
		in := &proto.VPutBody{Memory: memory, MemOff: memOff, Len: n, Put: piece}
		// As in nodePieces: not even Close ends the wait.
		_, err := e.c.ask(context.Background(), request{op: proto.OpVPutSignal, endpoint: e.id, body: in}, nil)
		return err
	})
}

// put is transfer of t, followed by the store of p's word.
func (d *direct) put(t *transfer, p rma.Put) bool {
	if d.e.far.is.Load() { // there is no memory to copy to
		return false
	}
	there, word := d.beginPut(t, p)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	if !d.settled() {
		return false // the node must report the failure of an earlier operation
	}
	var here []*window
	if !t.plain {
		if here = d.own.find(t.local, t.n, rma.ProtRead); here == nil {
			return false
		}
	}
	return d.move(d.peers(there, p.Offset, t.n), d.local(t, here), t.n, false) &&
		d.copied(word.region.Store(word.at(p.Word), 8, p.Value))
}

// beginPut returns the peer's windows for the bytes of a put, and that of its word. If it returns
// windows, mu is held.
func (d *direct) beginPut(t *transfer, p rma.Put) (there []*window, word *window) {
	if rma.CheckPut(p) != nil || p.More != 0 {
		return nil, nil
	}
	for range 2 { // the word's window may have to be requested
		there := d.beginAt(context.Background(), p.Offset, t.n, 0, rma.ProtWrite)
		if there == nil {
			return nil, nil
		}
		ws, missing, obstacle := d.look(p.Word, 8, rma.ProtWrite)
		if obstacle == nothing {
			return there, ws[0]
		}
		d.mu.Unlock()
		if obstacle != unknown || !d.fetch(context.Background(), missing) {
			return nil, nil
		}
	}
	return nil, nil
}

// put is transfer of t, followed by the store of w's word.
func (p *farPath) put(t *transfer, w rma.Put) (done bool, err error) {
	d := &p.e.direct
	there, _ := d.beginPut(t, w)
	if there == nil {
		return false, nil
	}
	q := newFar()
	defer q.free()
	v := farView{d, there[0].epoch}
	ok := d.settled() // the node must report the failure of an earlier operation
	q.payload = q.here(d, t)
	d.mu.Unlock()
	if !ok || q.payload == nil {
		return false, nil
	}
	if code := p.verdict(math.MaxUint64); code != status.OK {
		return true, code
	}
	q.writes(t.n, w.Offset, 0)
	q.behind = path.RMARequest{Kind: path.RMASignal, Flags: path.RMABehind, Offset: uint64(w.Word), Length: w.Value}
	return true, p.do(q, v)
}
