package fabric

import (
	"context"

	"github.com/fabricd/fabricd/rma"
)

// The atomics read, modify and write one word of the peer's windows and return
// the word's old value when it is done. SCIF has no such calls; it maps the
// memory instead. roffset is aligned to the word's width, and the word lies in
// a window with [ProtRead] and [ProtWrite]. Words have the byte order of the
// peer's machine. Atomics are applied in order with the endpoint's transfers,
// and are atomic with respect to each other and to the atomic operations of
// the peer's own process.
//
// Errors: ENOTCONN or ECONNRESET; EINVAL for an unaligned offset; ENXIO if the
// word is not registered; EACCES; the context's, when it cannot be known
// whether the word was changed.

// FetchAdd64 adds delta to the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchAdd64(ctx context.Context, roffset int64, delta uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicAdd, Offset: roffset, Operand: delta})
}

// FetchAnd64 ands mask into the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchAnd64(ctx context.Context, roffset int64, mask uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicAnd, Offset: roffset, Operand: mask})
}

// FetchOr64 ors mask into the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchOr64(ctx context.Context, roffset int64, mask uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicOr, Offset: roffset, Operand: mask})
}

// FetchXor64 xors mask into the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchXor64(ctx context.Context, roffset int64, mask uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicXor, Offset: roffset, Operand: mask})
}

// Swap64 stores value in the 64-bit word at roffset and returns its old value.
func (e *Endpoint) Swap64(ctx context.Context, roffset int64, value uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicSwap, Offset: roffset, Operand: value})
}

// FetchMin64 stores the smaller of the word and value, unsigned, in the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchMin64(ctx context.Context, roffset int64, value uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicMin, Offset: roffset, Operand: value})
}

// FetchMax64 stores the larger of the word and value, unsigned, in the 64-bit word at roffset and returns its old value.
func (e *Endpoint) FetchMax64(ctx context.Context, roffset int64, value uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicMax, Offset: roffset, Operand: value})
}

// CompareAndSwap64 stores value in the 64-bit word at roffset if the word
// equals compare, and returns its old value: it was stored if old == compare.
func (e *Endpoint) CompareAndSwap64(ctx context.Context, roffset int64, compare, value uint64) (old uint64, err error) {
	return e.atomic64(ctx, rma.Atomic{Op: rma.AtomicCAS, Offset: roffset, Operand: value, Compare: compare})
}

// FetchAdd32 adds delta to the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchAdd32(ctx context.Context, roffset int64, delta uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicAdd, Offset: roffset, Operand: uint64(delta)})
}

// FetchAnd32 ands mask into the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchAnd32(ctx context.Context, roffset int64, mask uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicAnd, Offset: roffset, Operand: uint64(mask)})
}

// FetchOr32 ors mask into the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchOr32(ctx context.Context, roffset int64, mask uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicOr, Offset: roffset, Operand: uint64(mask)})
}

// FetchXor32 xors mask into the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchXor32(ctx context.Context, roffset int64, mask uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicXor, Offset: roffset, Operand: uint64(mask)})
}

// Swap32 stores value in the 32-bit word at roffset and returns its old value.
func (e *Endpoint) Swap32(ctx context.Context, roffset int64, value uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicSwap, Offset: roffset, Operand: uint64(value)})
}

// FetchMin32 stores the smaller of the word and value, unsigned, in the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchMin32(ctx context.Context, roffset int64, value uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicMin, Offset: roffset, Operand: uint64(value)})
}

// FetchMax32 stores the larger of the word and value, unsigned, in the 32-bit word at roffset and returns its old value.
func (e *Endpoint) FetchMax32(ctx context.Context, roffset int64, value uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicMax, Offset: roffset, Operand: uint64(value)})
}

// CompareAndSwap32 stores value in the 32-bit word at roffset if the word
// equals compare, and returns its old value: it was stored if old == compare.
func (e *Endpoint) CompareAndSwap32(ctx context.Context, roffset int64, compare, value uint32) (old uint32, err error) {
	return e.atomic32(ctx, rma.Atomic{Op: rma.AtomicCAS, Offset: roffset, Operand: uint64(value), Compare: uint64(compare)})
}

func (e *Endpoint) atomic64(ctx context.Context, a rma.Atomic) (uint64, error) {
	a.Width = 8
	old, err := e.ep.Atomic(ctx, a)
	return old, e.fail("atomic", contextError(ctx, err))
}

func (e *Endpoint) atomic32(ctx context.Context, a rma.Atomic) (uint32, error) {
	a.Width = 4
	old, err := e.ep.Atomic(ctx, a)
	return uint32(old), e.fail("atomic", contextError(ctx, err))
}
