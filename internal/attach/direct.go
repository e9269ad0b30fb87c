package attach

import "github.com/fabricd/fabricd/rma"

// A DirectEndpoint is a RegionEndpoint whose application may access the peer's windows directly,
// without a call for each access: it maps the memory, and gets a notification when its windows may
// no longer be valid.
type DirectEndpoint interface {
	RegionEndpoint

	// PeerWindow finds the peer's window that contains roff. The caller gets a reference to the
	// region, not to the window: the memory can be mapped while File, see MapRegion, returns a
	// descriptor. The error is status.NotSupp if this connection never has such windows, because
	// the peer is on another node or its memory is private to its process; otherwise it is the
	// error of a transfer at roff.
	PeerWindow(roff int64) (PeerWindow, error)

	// FoundWindow records how the application accesses a window that PeerWindow found: directly if
	// why is nil, else through the node because of why.
	FoundWindow(why error)

	// OnWithdrawal makes the endpoint call fn when PeerWindow's results may no longer be valid:
	// when the peer unregisters windows, before its Unregister returns, and when the connection
	// ends, before the application can see it. Results of later calls of PeerWindow are not
	// affected. fn must neither wait nor call the endpoint. stop ends the calls, but one may still
	// be running. There is one fn at a time.
	OnWithdrawal(fn func()) (stop func(), err error)
}

// A PeerWindow is one window of the peer. It is valid until the first withdrawal after the call of
// PeerWindow began.
type PeerWindow struct {
	Offset, Length int64    // in the peer's space, in bytes
	Prot           rma.Prot // access allowed to this end
	Region         Region   // the window is [MemOff, MemOff+Length) of it
	MemOff         int64
}
