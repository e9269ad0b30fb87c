package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// Register accepts memory of the session's Alloc, or a part of it.
func (e *endpoint) Register(p []byte, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	select {
	case <-e.quit:
		return 0, status.BadFD
	default:
	}
	if len(p) == 0 || len(p)%rma.PageSize != 0 || addressOf(p)%rma.PageSize != 0 {
		return 0, fmt.Errorf("memory is not whole pages of %d bytes: %w", rma.PageSize, status.Invalid)
	}
	m, memOff, ok := e.c.memory.find(p)
	if !ok {
		if _, err := e.socket(); err != nil {
			return 0, err // an error of the state comes before one of the memory
		}
		return 0, fmt.Errorf("window memory must come from Alloc of the same node: %w", status.Fault)
	}
	defer m.region.Release()
	_ = e.c.memory.withdraw(false) // kept reports a failure for this memory
	m.moving.RLock()
	defer m.moving.RUnlock()
	if err := m.kept(); err != nil {
		return 0, err
	}
	id, err := m.name()
	if err != nil {
		return 0, err
	}
	w := &window{prot: prot, region: m.region, memOff: memOff}
	return e.direct.register(w, int64(len(p)), func() (int64, error) {
		var out proto.Offset
		in := &proto.Register{Memory: id, Prot: prot, Flags: flags, MemOff: memOff, Len: int64(len(p)), Off: off}
		err := e.ask(context.Background(), proto.OpRegister, in, &out)
		return out.Off, err
	})
}

func (e *endpoint) Unregister(off, n int64) error {
	err := e.direct.unregister(proto.Span{Off: off, Len: n}, func() error {
		return e.ask(context.Background(), proto.OpUnregister, &proto.Span{Off: off, Len: n}, nil)
	})
	if err != nil {
		return err
	}
	return e.c.memory.withdraw(false)
}

func (e *endpoint) WriteTo(loff, n, roff int64, flags rma.Flags) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.writeTo(loff, n, roff, flags); done {
			return err
		}
	}
	if e.direct.writeTo(loff, n, roff, flags) {
		return nil
	}
	return e.nodeTransfer(proto.OpWriteTo, proto.Transfer{Local: loff, Len: n, Remote: roff, Flags: flags})
}

func (e *endpoint) ReadFrom(loff, n, roff int64, flags rma.Flags) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.readFrom(loff, n, roff, flags); done {
			return err
		}
	}
	if e.direct.readFrom(loff, n, roff, flags) {
		return nil
	}
	return e.nodeTransfer(proto.OpReadFrom, proto.Transfer{Local: loff, Len: n, Remote: roff, Flags: flags})
}

// nodeTransfer is WriteTo or ReadFrom through the node.
func (e *endpoint) nodeTransfer(op proto.Op, t proto.Transfer) error {
	return e.direct.through(e.posts(t.Flags), func() error {
		return usePad(func(p *pad) error {
			p.transfer = t
			return e.ask(context.Background(), op, &p.transfer, nil)
		})
	})
}

func (e *endpoint) VWriteTo(p []byte, roff int64, flags rma.Flags) error {
	if q := e.far.path.Load(); q != nil {
		if done, err := q.vwriteTo(p, roff, flags); done {
			return err
		}
	}
	if e.direct.vwriteTo(p, roff, flags) {
		return nil
	}
	return e.direct.through(e.posts(flags), func() error { return e.vtransfer(proto.OpVWriteTo, p, roff, flags) })
}

func (e *endpoint) VReadFrom(p []byte, roff int64, flags rma.Flags) error {
	if q := e.far.path.Load(); q != nil {
		if done, err := q.vreadFrom(p, roff, flags); done {
			return err
		}
	}
	if e.direct.vreadFrom(p, roff, flags) {
		return nil
	}
	return e.direct.through(e.posts(flags), func() error { return e.vtransfer(proto.OpVReadFrom, p, roff, flags) })
}

func (e *endpoint) vtransfer(op proto.Op, p []byte, roff int64, flags rma.Flags) error {
	if _, err := e.socket(); err != nil {
		return err
	}
	if len(p) == 0 { // the node decides which error comes first: of the state, the flags or the length
		if op == proto.OpVWriteTo {
			return e.WriteTo(0, 0, roff, flags)
		}
		return e.ReadFrom(0, 0, roff, flags)
	}
	if err := e.checkPieces(op, int64(len(p)), roff, flags); err != nil {
		return err
	}
	return e.c.memory.stage(p, op == proto.OpVWriteTo, func(memory uint32, memOff, done, n int64) error {
		return usePad(func(p *pad) error {
			p.staged = proto.VTransfer{Memory: memory, Flags: flags, MemOff: memOff, Len: n, Remote: roff + done}
			// Not even Close ends the wait: the node uses the memory until it answers.
			_, err := e.c.ask(context.Background(), request{op: op, endpoint: e.id, body: &p.staged}, nil)
			return err
		})
	})
}

// checkPieces makes the node check the whole range of a transfer in pieces, so that no piece is
// transferred if the last one is out of range.
func (e *endpoint) checkPieces(op proto.Op, n, roff int64, flags rma.Flags) error {
	if n <= proto.MaxStage {
		return nil
	}
	in := &proto.CheckBody{Remote: roff, Len: n, Flags: flags, Need: rma.ProtRead}
	if op == proto.OpVWriteTo {
		in.Need = rma.ProtWrite
	}
	return e.ask(context.Background(), proto.OpCheck, in, nil)
}

func (e *endpoint) Atomic(ctx context.Context, a rma.Atomic) (uint64, error) {
	if p := e.far.path.Load(); p != nil {
		if old, done, err := p.atomic(ctx, a); done {
			return old, err
		}
		if err := p.flushed(ctx, p.last()); err != nil { // as through does, but with ctx
			return 0, err
		}
	}
	if old, done := e.direct.atomic(ctx, a); done {
		return old, nil
	}
	return e.nodeAtomic(ctx, a)
}

// nodeAtomic is Atomic through the node.
func (e *endpoint) nodeAtomic(ctx context.Context, a rma.Atomic) (uint64, error) {
	var old uint64
	err := e.direct.through(false, func() error {
		return usePad(func(p *pad) error {
			p.atomic, p.word = proto.AtomicBody(a), proto.WordBody{}
			err := e.ask(ctx, proto.OpAtomic, &p.atomic, &p.word)
			old = p.word.Value
			return err
		})
	})
	if err != nil && ctx.Err() != nil {
		e.direct.note() // the node may still be performing it
	}
	return old, err
}

func (e *endpoint) Mmap(roff, n int64, prot rma.Prot) (attach.Mapping, error) {
	var out proto.Mapped
	q := request{op: proto.OpMmap, body: &proto.MmapBody{Off: roff, Len: n, Prot: prot}, ended: status.Reset}
	q.late = func(a answer) { // no caller waits for the mapping any more
		var m proto.Mapped
		if proto.ParseAnswer(a.h, a.body, &m) == nil {
			e.c.post(request{op: proto.OpMunmap, body: &proto.MemoryBody{Memory: m.Mapping}}, nil) // fails only when the session ends
		}
		a.drop()
	}
	f, err := e.request(context.Background(), q, &out)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("node sent no memory: %w", status.Protocol)
	}
	region, err := shm.Map(f, out.Off, n, prot&rma.ProtWrite != 0)
	if err != nil {
		f.Close()
		e.c.post(request{op: proto.OpMunmap, body: &proto.MemoryBody{Memory: out.Mapping}}, nil) // the window is unused; fails only when the session ends
		return nil, err
	}
	return &mapping{c: e.c, id: out.Mapping, region: region}, nil
}

// A mapping is a peer's memory in this process.
type mapping struct {
	c      *session
	id     uint32 // the node's number of it
	once   sync.Once
	region *shm.Region
}

func (m *mapping) Bytes() []byte { return m.region.Bytes() }

func (m *mapping) Close() error {
	err := error(status.BadFD)
	m.once.Do(func() {
		m.region.Release()
		m.c.ask(context.Background(), request{op: proto.OpMunmap, body: &proto.MemoryBody{Memory: m.id}}, nil) // the session's end drops it too
		err = nil
	})
	return err
}

func (e *endpoint) FenceMark(by fence.Side) (fence.Mark, error) {
	if by == fence.InitSelf {
		if p := e.far.path.Load(); p != nil {
			return p.mark()
		}
		if m, done := e.direct.mark(); done {
			return m, nil
		}
	}
	return e.direct.nodeMark(context.Background(), by)
}

func (e *endpoint) FenceWait(ctx context.Context, m fence.Mark) error {
	if p := e.far.path.Load(); p != nil && m.Side == fence.InitSelf {
		return p.wait(ctx, m)
	}
	if e.direct.wait(m) {
		return nil
	}
	return e.direct.nodeWait(ctx, m)
}

func (e *endpoint) FenceSignal(s fence.Signal) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.signal(s); done {
			return err
		}
	} else if e.direct.signal(s) {
		return nil
	}
	return e.nodeSignal(s)
}

// nodeSignal is FenceSignal through the node.
func (e *endpoint) nodeSignal(s fence.Signal) error {
	return e.direct.through(e.far.is.Load(), func() error {
		return usePad(func(p *pad) error {
			p.signal = proto.SignalBody(s)
			return e.ask(context.Background(), proto.OpFenceSignal, &p.signal, nil)
		})
	})
}
