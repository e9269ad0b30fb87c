package fabric

import "github.com/fabricd/fabricd/rma"

// The posted atomics change one word of the peer's windows and return no old
// value. They differ from the fetching ones as a write from a read: they return
// when the change is on its way, and it has been made when a fence behind it is
// complete. No answer comes back for them but that of writes. On one
// node the change has been made on return. Rights, alignment and errors are
// those of the fetching ones.

// Add64 adds delta to the 64-bit word at roffset.
func (e *Endpoint) Add64(roffset int64, delta uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roffset, Operand: delta})
}

// And64 ands mask into the 64-bit word at roffset.
func (e *Endpoint) And64(roffset int64, mask uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicAnd, Width: 8, Offset: roffset, Operand: mask})
}

// Or64 ors mask into the 64-bit word at roffset.
func (e *Endpoint) Or64(roffset int64, mask uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicOr, Width: 8, Offset: roffset, Operand: mask})
}

// Xor64 xors mask into the 64-bit word at roffset.
func (e *Endpoint) Xor64(roffset int64, mask uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicXor, Width: 8, Offset: roffset, Operand: mask})
}

// Store64 stores value in the 64-bit word at roffset.
func (e *Endpoint) Store64(roffset int64, value uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicSwap, Width: 8, Offset: roffset, Operand: value})
}

// Min64 stores the smaller of the word and value, unsigned, in the 64-bit word at roffset.
func (e *Endpoint) Min64(roffset int64, value uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicMin, Width: 8, Offset: roffset, Operand: value})
}

// Max64 stores the larger of the word and value, unsigned, in the 64-bit word at roffset.
func (e *Endpoint) Max64(roffset int64, value uint64) error {
	return e.post(rma.Atomic{Op: rma.AtomicMax, Width: 8, Offset: roffset, Operand: value})
}

// Add32 adds delta to the 32-bit word at roffset.
func (e *Endpoint) Add32(roffset int64, delta uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicAdd, Width: 4, Offset: roffset, Operand: uint64(delta)})
}

// And32 ands mask into the 32-bit word at roffset.
func (e *Endpoint) And32(roffset int64, mask uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicAnd, Width: 4, Offset: roffset, Operand: uint64(mask)})
}

// Or32 ors mask into the 32-bit word at roffset.
func (e *Endpoint) Or32(roffset int64, mask uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicOr, Width: 4, Offset: roffset, Operand: uint64(mask)})
}

// Xor32 xors mask into the 32-bit word at roffset.
func (e *Endpoint) Xor32(roffset int64, mask uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicXor, Width: 4, Offset: roffset, Operand: uint64(mask)})
}

// Store32 stores value in the 32-bit word at roffset.
func (e *Endpoint) Store32(roffset int64, value uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicSwap, Width: 4, Offset: roffset, Operand: uint64(value)})
}

// Min32 stores the smaller of the word and value, unsigned, in the 32-bit word at roffset.
func (e *Endpoint) Min32(roffset int64, value uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicMin, Width: 4, Offset: roffset, Operand: uint64(value)})
}

// Max32 stores the larger of the word and value, unsigned, in the 32-bit word at roffset.
func (e *Endpoint) Max32(roffset int64, value uint32) error {
	return e.post(rma.Atomic{Op: rma.AtomicMax, Width: 4, Offset: roffset, Operand: uint64(value)})
}

func (e *Endpoint) post(a rma.Atomic) error { return e.fail("atomic", e.ep.PostAtomic(a)) }

// A Notice is a word of the peer's windows and the value that a put stores there.
type Notice struct {
	Offset int64 // a multiple of 8
	Value  uint64
}

// PutSignal copies n bytes from loffset of the endpoint's own windows to roffset
// of the peer's, and then stores sig. A reader of the value in the word sees the
// bytes. It is [Endpoint.WriteTo] without flags and [Endpoint.FenceSignal] in
// one call, but that the signal covers these bytes and no read before them, and
// that it has begun wholly or, after an error, not at all. An endpoint's puts
// and writes are applied in the order in which they were begun.
//
// Errors: those of WriteTo; EINVAL if sig.Offset is not a multiple of 8, ENXIO
// if its word is not registered, EACCES if its window has no [ProtWrite]; the
// error of a transfer that has failed before, behind which no signal is stored.
func (e *Endpoint) PutSignal(loffset, n, roffset int64, sig Notice) error {
	return e.fail("putsignal", e.ep.PutSignal(loffset, n, put(roffset, sig)))
}

// VPutSignal is PutSignal from any memory. p belongs to the transfer until a
// fence.
func (e *Endpoint) VPutSignal(p []byte, roffset int64, sig Notice) error {
	return e.fail("vputsignal", e.ep.VPutSignal(p, put(roffset, sig)))
}

func put(roffset int64, sig Notice) rma.Put {
	return rma.Put{Offset: roffset, Word: sig.Offset, Value: sig.Value}
}
