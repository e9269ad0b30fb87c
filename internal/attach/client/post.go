package client

import (
	"context"
	"math"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/rma"
)

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

func (e *endpoint) PutSignal(loff, n int64, p rma.Put) error {
	if q := e.far.path.Load(); q != nil {
		if done, err := q.put(nil, loff, n, p); done {
			return err
		}
	}
	if e.direct.put(nil, loff, n, p) {
		return nil
	}
	return e.nodePut(loff, n, p)
}

// nodePut is PutSignal through the node.
func (e *endpoint) nodePut(loff, n int64, p rma.Put) error {
	return e.direct.through(true, func() error {
		return e.ask(context.Background(), proto.OpPutSignal, &proto.PutBody{Local: loff, Len: n, Put: p}, nil)
	})
}

func (e *endpoint) VPutSignal(b []byte, p rma.Put) error {
	if q := e.far.path.Load(); q != nil && b != nil {
		if done, err := q.put(b, 0, int64(len(b)), p); done {
			return err
		}
	}
	if b != nil && e.direct.put(b, 0, int64(len(b)), p) {
		return nil
	}
	return e.nodeVPut(b, p)
}

// nodeVPut is VPutSignal through the node.
func (e *endpoint) nodeVPut(b []byte, p rma.Put) error {
	if _, err := e.socket(); err != nil {
		return err
	}
	if len(b) == 0 || rma.CheckPut(p) != nil {
		return e.PutSignal(0, 0, p) // the node decides which error comes first: the state's or the argument's
	}
	return e.direct.through(true, func() error { return e.putPieces(b, p) })
}

// putPieces transfers in pieces like VWriteTo. With the first piece the node checks all ranges;
// only the last piece stores the word.
func (e *endpoint) putPieces(b []byte, p rma.Put) error {
	total := int64(len(b))
	return e.c.memory.stage(b, true, func(memory uint32, memOff, done, n int64) error {
		piece := p
		piece.Offset += done
		piece.More += min(total-done-n, math.MaxInt64-p.More)
		in := &proto.VPutBody{Memory: memory, MemOff: memOff, Len: n, Put: piece}
		// As in vtransfer: not even Close ends the wait.
		_, err := e.c.ask(context.Background(), request{op: proto.OpVPutSignal, endpoint: e.id, body: in}, nil)
		return err
	})
}
