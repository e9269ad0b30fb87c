// Package fence orders RMA operations: it reports when every operation begun before some point has
// completed.
package fence

// A Side selects the operations that a fence covers, seen from the caller.
type Side uint8

const (
	InitSelf Side = 1 // operations that this end initiated (SCIF_FENCE_INIT_SELF)
	InitPeer Side = 2 // operations that the peer initiated (SCIF_FENCE_INIT_PEER)
)

// A Mark is a point in the order in which one side's operations began. Marks can be waited for any
// number of times, in any order.
type Mark struct {
	Side Side
	Seq  uint64 // operations begun before the mark
}

// A Where selects the words that a signal stores. It is a set.
type Where uint8

const (
	SignalLocal  Where = 0x10 // SCIF_SIGNAL_LOCAL
	SignalRemote Where = 0x20 // SCIF_SIGNAL_REMOTE
)

// A Signal asks for 8-byte values to be stored when all operations that By initiated so far have
// completed (scif_fence_signal). Offsets that Where does not select are ignored.
type Signal struct {
	By           Side
	Where        Where
	LocalOffset  int64 // a multiple of 4, in this end's space
	LocalValue   uint64
	RemoteOffset int64 // a multiple of 4, in the peer's space
	RemoteValue  uint64
}
