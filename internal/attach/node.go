package attach

import (
	"context"
	"os"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A NodeSession is the node's end of a Session.
type NodeSession interface {
	sessionCalls

	// Open returns a new unbound endpoint (scif_open).
	Open() (NodeEndpoint, error)

	// CloseWindows freezes the memory of the session's windows and of its callers. When it returns,
	// neither a peer nor an operation of the session changes that memory, except through mappings
	// of applications on this machine and copies that they are making at that moment. Operations
	// that would change it, and the peers' reads, end with status.Reset; messages and the close
	// proceed. It waits, about three seconds at most, for bytes that are being written into memory:
	// a connection whose bytes do not arrive in that time ends.
	CloseWindows()
}

// A NodeEndpoint is the node's end of an Endpoint. The memory of VWriteTo and VPutSignal is a copy,
// which the node holds until they have ended.
type NodeEndpoint interface {
	endpointCalls

	// Accept and TryAccept are Endpoint's.
	Accept(ctx context.Context) (NodeEndpoint, addr.Addr, error)
	TryAccept() (NodeEndpoint, addr.Addr, error)

	// RefuseWaiting refuses the connection requests that are queued; later ones wait.
	RefuseWaiting()

	// Hold makes a listening endpoint hold its requests until its application knows whether it can
	// serve them: Accept returns the endpoint of one whose requester still waits. Nothing but
	// Settle, Peer and the close may be called on that.
	Hold()
	// Settle grants the request that an endpoint holds, and waits for the requester's
	// confirmation; with a code other than status.OK it refuses it, as the close does. On another
	// endpoint it does nothing.
	Settle(code status.Code) error
	// HungUp is closed when the requester has given up, or the peer's side has ended the
	// connection.
	HungUp() <-chan struct{}

	// Pair returns keys of this end of the connection and of its other end. They are comparable,
	// unique on the node and constant while the connection is open. It reports false unless both
	// ends are on this node.
	Pair() (self, peer any, ok bool)

	// Via records, for operators, the path of the endpoint's messages to its application, and why
	// no faster one is used.
	Via(path, why string)

	// Window returns how many message bytes the endpoint buffers for an application that does not
	// read, which does not change while it is connected; 0 before. The relay and its socket buffer
	// no more than that in addition.
	Window() int

	// RegisterRegion opens a window onto [memOff, memOff+n) of r, whole pages, at off of the
	// endpoint's space (scif_register). The window holds a reference of its own,
	// from before RegisterRegion returns without error until its last use.
	RegisterRegion(r Region, memOff, n, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error)

	// CheckTransfer returns the error that a VWriteTo (need is ProtWrite) or VReadFrom (ProtRead)
	// of n bytes at roff would return at once. It moves no bytes.
	CheckTransfer(roff, n int64, flags rma.Flags, need rma.Prot) error

	// MapRegion finds the memory behind [roff, roff+n) of the peer's windows,
	// with Mmap's errors: it is [memOff, memOff+n) of r. The caller gets a
	// reference, which is the mapping: it lasts until Release.
	MapRegion(roff, n int64, prot rma.Prot) (r WindowRegion, memOff int64, err error)

	// PeerWindow finds the peer's window that contains roff, for an application that maps it and
	// accesses it without a call. The caller gets a reference to the region, not to the window: the
	// memory can be mapped while File, see MapRegion, returns a descriptor. The error is
	// status.NotSupp if this connection never has such windows, because
	// the peer is on another node or its memory is private to its process; otherwise it is the
	// error of a transfer at roff.
	PeerWindow(roff int64) (PeerWindow, error)

	// FoundWindow records how the application accesses a window that PeerWindow found: directly if
	// why is nil, else through the node because of why.
	FoundWindow(why error)

	// FarWindow finds the window that contains roff of a peer on another node, without its memory.
	FarWindow(roff int64) (PeerWindow, error)

	// OnInvalidation makes the endpoint call fn when the results of PeerWindow and FarWindow may no
	// longer be valid: when the peer unregisters windows, before its Unregister returns, and when
	// the connection ends, before the application can see it. Results of later calls are not
	// affected. fn must neither wait nor call the endpoint. stop ends the calls, but one may still
	// be running. There is one fn at a time.
	OnInvalidation(fn func()) (stop func(), err error)

	// Path asks for the connection's path, a socket of its own between the two applications, on
	// behalf of the application with that key, and waits
	// until it is made. A connection has at most one. status.NotSupp: there will be none; another
	// error: the caller may ask again after a second or more. The text gives the reason. freed is
	// called once the node holds no resource of the path any more, also if there is no path.
	Path(ctx context.Context, key path.Hash, freed func()) (PathSocket, error)

	// PathRest takes the bytes that the path's socket has no room for, in order: the node sends them
	// when the connection closes, before the socket's end. The caller keeps b. Of one path
	// it takes path.RestMost at most; an error gives up those taken before, as nil does.
	PathRest(b []byte) error

	// OnPath calls fn whenever the peer asks for a path that this end has not asked for.
	OnPath(fn func())

	// NoPath reports why the application cannot use its path, which then ends. used: it has used
	// the path, and the connection is reset.
	NoPath(why string, used bool)

	// RMAPath and NoRMAPath are Path and NoPath for the operations of the application on windows of
	// a peer on another node, which go straight to that node.
	RMAPath(ctx context.Context, key path.Hash, freed func()) (PathSocket, error)
	NoRMAPath(why string, used bool)
}

// A PeerWindow is one window of the peer. It is valid until the first invalidation after the call
// that found it began.
type PeerWindow struct {
	Offset, Length int64    // in the peer's space, in bytes
	Prot           rma.Prot // access allowed to this end
	Region         Region   // the window is [MemOff, MemOff+Length) of it
	MemOff         int64
}

// A PathSocket is one end of a path, made by the nodes of both ends.
type PathSocket struct {
	File      *os.File     // owned by the caller
	Client    bool         // this end is the TLS client
	Plaintext bool         // no TLS
	Binding   path.Binding // both ends send it first
	Peer      path.Hash    // of the key of the application at the other end
}

// The paths of messages, see [NodeEndpoint].
const (
	ViaCall    = "call"    // in the node's process
	ViaSocket  = "socket"  // through the data socket, relayed by the node
	ViaShmPath = "channel" // through a shared-memory path, without the node; scripts know this value
	ViaPath    = "path"    // through a socket to the application on the other node
)
