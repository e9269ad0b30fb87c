package attach

import "github.com/fabricd/fabricd/rma"

// A DirectEndpoint is a RegionEndpoint whose peer's windows may be used by the
// application itself, without a call for each use: it maps the memory, and
// hears when what it knows of the windows is no longer true.
type DirectEndpoint interface {
	RegionEndpoint

	// PeerWindow finds the peer's window that roff is in. The region has a
	// reference for the caller, and none for the window: its memory can be
	// mapped while File, see MapRegion, gives a descriptor. The error is
	// status.NotSupp if this connection never has such windows, because the peer
	// is on another node or its memory belongs to its process alone, and
	// otherwise what a transfer at roff would return.
	PeerWindow(roff int64) (PeerWindow, error)

	// FoundWindow notes how the application reaches a window that PeerWindow has
	// found: directly, or through the node, and why.
	FoundWindow(why error)

	// OnWithdrawal makes the endpoint call fn when PeerWindow's answers may no
	// longer hold: when the peer unregisters windows, before its Unregister
	// returns, and when the connection ends, before that can be seen.
	// What PeerWindow has found after such a call is not meant by it. fn must
	// neither wait nor call the endpoint; stop ends the calls, but one may be
	// under way. There is one fn at a time.
	OnWithdrawal(fn func()) (stop func(), err error)
}

// A PeerWindow is one window of the peer. It may be used as long as there has
// been no withdrawal since before it was asked for.
type PeerWindow struct {
	Offset, Length int64    // in the peer's space, in bytes
	Prot           rma.Prot // what this end may do
	Region         Region   // the window is [MemOff, MemOff+Length) of it
	MemOff         int64
}
