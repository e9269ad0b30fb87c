package ipc

import (
	"context"
	"math"

	"github.com/fabricd/fabricd/rma"
)

func (e *clientEndpoint) PostAtomic(a rma.Atomic) error {
	if _, done := e.direct.atomic(a); done {
		return nil
	}
	defer e.direct.note() // what the node does may not be done when it answers
	return e.ask(context.Background(), opPostAtomic, (*atomicBody)(&a), nil)
}

func (e *clientEndpoint) PutSignal(loff, n int64, p rma.Put) error {
	defer e.direct.note()
	return e.ask(context.Background(), opPutSignal, &putBody{loff, n, p}, nil)
}

// VPutSignal goes in pieces as VWriteTo does. The first one has the node check
// all ranges; only the last one stores the word.
func (e *clientEndpoint) VPutSignal(b []byte, p rma.Put) error {
	if _, err := e.socket(); err != nil {
		return err
	}
	if len(b) == 0 || rma.CheckPut(p) != nil {
		return e.PutSignal(0, 0, p) // the node knows what comes first: the state or the argument
	}
	total := int64(len(b))
	defer e.direct.note()
	return e.c.memory.stage(b, true, func(memory uint32, memOff, done, n int64) error {
		piece := p
		piece.Offset += done
		piece.More += min(total-done-n, math.MaxInt64-p.More)
		in := &vputBody{Memory: memory, MemOff: memOff, Len: n, Put: piece}
		// As in vtransfer: not even Close ends the wait.
		_, err := e.c.ask(context.Background(), question{op: opVPutSignal, endpoint: e.id, body: in}, nil)
		return err
	})
}
