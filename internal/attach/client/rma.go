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
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/rma"
)

// Register accepts memory of the session's Alloc, or a part of it.
func (e *endpoint) Register(p []byte, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	if wait.Over(e.quit) {
		return 0, status.BadFD
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
	_ = e.c.memory.moveExposed(false) // kept reports a failure for this memory
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
	return e.c.memory.moveExposed(false)
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

func (e *endpoint) PostAtomic(a rma.Atomic) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.postAtomic(a); done {
			return err
		}
	}
	if _, done := e.direct.atomic(context.Background(), a); done {
		return nil
	}
	return e.nodePost(a)
}

// nodePost is PostAtomic through the node, which answers before the atomic is performed.
func (e *endpoint) nodePost(a rma.Atomic) error {
	return e.direct.through(true, func() error {
		return usePad(func(p *pad) error {
			p.atomic = proto.AtomicBody(a)
			return e.ask(context.Background(), proto.OpPostAtomic, &p.atomic, nil)
		})
	})
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
