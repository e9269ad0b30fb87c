package client

import (
	"context"
	"encoding/binary"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/rma"
)

// A direct operation has ended when its call returns. If the node has none of the endpoint's
// operations either, fences need not wait and are completed here: they only need the certainty that
// the connection has not ended.

// nodeOps is the state of an endpoint's operations that went through the node. Guarded by the
// endpoint's direct.mu.
type nodeOps struct {
	inNode          int    // unanswered calls
	posted, drained uint64 // answered calls whose operations may be incomplete, and the completed ones of those
	refused, known  uint64 // failed calls, possibly after they had begun, which fences report; and the ones reported so far

	// The newest of the node's marks, and the counts of the calls that it covers.
	marked struct{ seq, posted, refused uint64 }
}

// settled reports whether every operation in the node has ended without an error.
func (o *nodeOps) settled() bool {
	return o.inNode == 0 && o.posted == o.drained && o.refused == o.known
}

// reached records that every operation before a mark has ended without an error.
func (o *nodeOps) reached(posted, refused uint64) {
	o.drained, o.known = max(o.drained, posted), max(o.known, refused)
}

// through performs an operation of this endpoint in the node. posts: the node answers before the
// operation has ended. Direct operations must not overtake it.
func (d *direct) through(posts bool, ask func() error) error {
	if err := d.e.leaveFar(); err != nil {
		return err
	}
	d.mu.Lock()
	d.inNode++
	d.mu.Unlock()
	err := ask()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inNode--
	if posts {
		d.posted++
	}
	if err != nil {
		d.refused++
	}
	return err
}

// note records that an operation of this endpoint may still be running in the node although its
// call has returned.
func (d *direct) note() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posted++
}

// drain waits for the operations recorded up to posted.
func (d *direct) drain(ctx context.Context, posted uint64) bool {
	m, err := d.nodeMark(ctx, fence.InitSelf)
	if err == nil {
		err = d.nodeWait(ctx, m)
	}
	// A failed operation has ended too; but then there may be no connection.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.reached(posted, 0)
	}
	return err == nil
}

// nodeMark is FenceMark through the node.
func (d *direct) nodeMark(ctx context.Context, by fence.Side) (fence.Mark, error) {
	d.mu.Lock()
	posted, refused := d.posted, d.refused
	d.mu.Unlock()
	var out fence.Mark
	err := usePad(func(p *pad) error {
		p.side, p.mark = proto.SideBody{Side: by}, proto.MarkBody{}
		err := d.e.ask(ctx, proto.OpFenceMark, &p.side, &p.mark)
		out = fence.Mark(p.mark)
		return err
	})
	if err != nil {
		return out, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case by != fence.InitSelf:
	case out.Seq == 0: // no operation has ever begun there
		d.reached(posted, refused)
	case out.Seq >= d.marked.seq:
		d.marked.seq, d.marked.posted, d.marked.refused = out.Seq, posted, refused
	}
	return out, nil
}

// nodeWait is FenceWait through the node.
func (d *direct) nodeWait(ctx context.Context, m fence.Mark) error {
	err := usePad(func(p *pad) error {
		p.mark = proto.MarkBody(m)
		return d.e.ask(ctx, proto.OpFenceWait, &p.mark, nil)
	})
	if err != nil || m.Side != fence.InitSelf {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.Seq >= d.marked.seq {
		d.reached(d.marked.posted, d.marked.refused)
	}
	return nil
}

// alive reports whether the connection certainly has not ended: the node has reported a window, and
// no change since. The caller holds mu.
func (d *direct) alive() bool {
	return d.sure && !d.closed && d.word.Load() == d.incarnations && !d.e.c.direct.over.Load()
}

// nothingBegun is a mark that covers no operation of the node, and is valid there too.
var nothingBegun = fence.Mark{Side: fence.InitSelf}

// mark returns a mark that covers all operations of this end, if all have ended.
func (d *direct) mark() (fence.Mark, bool) {
	d.mu.Lock() // waits for a running copy
	defer d.mu.Unlock()
	return nothingBegun, d.alive() && d.settled()
}

// wait reports whether m certainly is reached.
func (d *direct) wait(m fence.Mark) bool {
	if m != nothingBegun {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.alive()
}

// signal stores the values of s, and reports whether it did. If not, the node performs it.
func (d *direct) signal(s fence.Signal) bool {
	if s.By != fence.InitSelf || fence.CheckSignal(s) != nil {
		return false
	}
	there, ok := d.beginSignal(s)
	if !ok {
		return false
	}
	defer d.mu.Unlock()
	if !d.settled() {
		return false
	}
	var here []*window
	if s.Where&fence.SignalLocal != 0 {
		if here = d.own.find(s.LocalOffset, 8, rma.ProtWrite); len(here) != 1 {
			return false
		}
	}
	if len(here) == 1 {
		if err := store8(here[0].region, here[0].at(s.LocalOffset), s.LocalValue); err != nil {
			return d.copied(err)
		}
	}
	if there != nil {
		return d.copied(store8(there.region, there.at(s.RemoteOffset), s.RemoteValue))
	}
	return true
}

// beginSignal returns the peer's window that s stores into, or nil if s stores nothing there. If
// ok, mu is held.
func (d *direct) beginSignal(s fence.Signal) (there *window, ok bool) {
	if s.Where&fence.SignalRemote == 0 {
		d.mu.Lock()
		if ok = d.alive(); !ok {
			d.mu.Unlock()
		}
		return nil, ok
	}
	ws := d.begin(context.Background(), s.RemoteOffset, 8, 0, rma.ProtWrite)
	if len(ws) > 1 { // a word lies in one window
		d.mu.Unlock()
	}
	if len(ws) != 1 {
		return nil, false
	}
	return ws[0], true
}

// store8 stores v, as one atomic word if off is aligned.
func store8(r *shm.Region, off int64, v uint64) error {
	if off%8 == 0 {
		return r.Store(off, 8, v)
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return r.WriteAt(b[:], off)
}
