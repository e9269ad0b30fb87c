// Package rma is the registered address space of one endpoint, as arithmetic:
// windows, spans over adjacent windows, protection, and the operations on them.
// It knows neither the network nor the memory behind a window.
package rma

// A Prot is the access that a peer's operations have to a window (SCIF_PROT_READ, SCIF_PROT_WRITE).
// It does not limit local loads and stores.
type Prot uint8

const (
	ProtRead  Prot = 1
	ProtWrite Prot = 2
)

// A MapFlags qualifies a registration (SCIF_MAP_*).
type MapFlags uint32

// MapFixed demands the given offset (SCIF_MAP_FIXED).
const MapFixed MapFlags = 0x10

// Flags qualify an RMA operation (SCIF_RMA_*).
type Flags uint32

const (
	UseCPU   Flags = 1 // a hint; accepted
	UseCache Flags = 2 // a hint; accepted
	Sync     Flags = 4 // return when the operation has completed
	Ordered  Flags = 8 // the last 64-byte line becomes visible after the rest
)

// PageSize is the granularity of registration in bytes, on every machine.
const PageSize = 4096

// FirstOffset is the lowest offset that the space chooses: the layout of the first SCIF drivers, so
// that both ends of a fresh connection that register the same sizes get the same offsets.
const FirstOffset int64 = 0x4000000000000000

// An AtomicOp is a read-modify-write of one word of a window.
type AtomicOp uint8

const (
	AtomicAdd AtomicOp = iota + 1
	AtomicAnd
	AtomicOr
	AtomicXor
	AtomicSwap
	AtomicCAS // store Operand if the word equals Compare
	AtomicMin // unsigned
	AtomicMax // unsigned
)

// An Atomic asks for one atomic operation on a word of the peer's window. The
// word is aligned to its width and lies in one window that allows reading and
// writing.
type Atomic struct {
	Op      AtomicOp
	Width   uint8 // 4 or 8 bytes
	Offset  int64 // of the word, in the peer's space
	Operand uint64
	Compare uint64 // AtomicCAS only
}

// A Put is a write followed by a signal: a reader that sees Value in the word sees the bytes. The
// word is aligned to 8 and lies in one window that allows writing.
type Put struct {
	Offset int64  // of the bytes, in the peer's space
	Word   int64  // of the word, in the peer's space
	Value  uint64 // to be stored there
	More   int64  // bytes of later puts of the same call; the last one stores the word
}
