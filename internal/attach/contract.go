// Package attach is the contract between an application and its node (Session, Endpoint).
// The engine keeps it. The attach protocol carries it over a Unix socket: package proto has
// its format (SPEC.md), client and server its ends, which know nothing of each other. An
// application in its node's process speaks that protocol too, but for the messages of its
// connections: their ends are the node's own (client.AttachTo). Tests call the engine's
// contract directly.
//
// Every error of the contract has a status.Code in its chain.
package attach

import (
	"context"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/rma"
)

// Credentials say who an application is, as its kernel vouches (SO_PEERCRED).
type Credentials struct {
	UID, GID uint32
	PID      int32
	// Admin allows ports below addr.AdminEnd.
	Admin bool
}

// Self is a node's own place in the cluster.
type Self struct {
	Cluster addr.UUID
	Life    addr.Life // Generation 0 while the node has no lease
	Name    string
}

// An EventKind is one of SCIF's node events.
type EventKind uint8

const (
	NodeAdded   EventKind = 1 // SCIF_NODE_ADDED
	NodeRemoved EventKind = 2 // SCIF_NODE_REMOVED
)

// An Event tells that a node's life began or ended. For one life a session
// sees at most one NodeAdded and then at most one NodeRemoved, and NodeRemoved
// only after every operation towards that life has failed.
type Event struct {
	Kind   EventKind
	Life   addr.Life
	Name   string
	Reason string // of a removal: "left", "crashed", "silent", "restarted", …
}

// A Peer is the application at the other end of a connection, as its node
// vouches for it. Name and Labels are those that the node table had when the
// connection was made; Labels must not be changed.
type Peer struct {
	Life   addr.Life
	Name   string
	Labels []string
	UID    uint32 // access.UnknownUID: not known
}

// Events are poll's events, with poll(2)'s numbers (SCIF_POLL*).
type Events int16

const (
	PollIn   Events = 0x01
	PollOut  Events = 0x04
	PollErr  Events = 0x08
	PollHup  Events = 0x10
	PollNval Events = 0x20
	// PollRdHup comes with PollIn when the peer has ended what it sends and everything was
	// received.
	PollRdHup Events = 0x2000
)

// A Session is one application's use of its node. Its methods may be called
// from any goroutine.
type Session interface {
	// Self returns the node's current ID and generation.
	Self() Self

	// Nodes returns the IDs of all live nodes, this one included, ascending,
	// and this node's own ID (scif_get_nodeIDs).
	Nodes() (ids []addr.NodeID, self addr.NodeID, err error)

	Directory

	// Watch calls fn for every node event from now on, one at a time and in
	// order, from a goroutine of the session. The nodes that are live now are
	// not reported. After cancel has returned no call of fn begins.
	Watch(fn func(Event)) (cancel func())

	// Open returns a new unbound endpoint (scif_open).
	Open() (Endpoint, error)

	// OpenContext is Open whose wait for the node ends with ctx.
	OpenContext(ctx context.Context) (Endpoint, error)

	// Alloc returns zeroed memory that Register accepts, n bytes rounded up to
	// whole pages and page-aligned. It is unmapped by Memory.Close, once no window uses it.
	Alloc(n int) (Memory, error)

	// Close ends every endpoint of the session, by Abort if it is connected, and
	// waits until nothing of it is left. A second Close does nothing.
	Close() error

	// Done is closed when the session has ended: Close was called or the node
	// went away.
	Done() <-chan struct{}
}

// LeavingSession is a Session of a node that may end before its application.
type LeavingSession interface {
	Session
	// CloseWindows makes the memory of the session's windows, and of its
	// callers, stay as it is. When it returns nothing of the peers and of the
	// session's own operations changes it any more, but for what applications of
	// this machine have mapped, or are copying themselves at that moment.
	// Operations that would change it end with status.Reset, and so do the peers'
	// reads; messages, and the close, go on. It waits for bytes that are being put
	// into memory, at most about three seconds: a connection on which they do not
	// come ends.
	CloseWindows()
}

// Memory is page-aligned memory for windows.
type Memory interface {
	Bytes() []byte
	// Close gives the memory back when no window holds it. The bytes must not
	// be used afterwards.
	Close() error
}

// PagedMemory is Memory that may lie in huge pages.
type PagedMemory interface {
	Memory
	// SmallPages says why it does not, if it was to be tried; else "".
	SmallPages() string
}

// A Mapping is a peer's window memory mapped here (scif_mmap). It stays valid
// until Close, whatever becomes of the connection.
type Mapping interface {
	Bytes() []byte
	Close() error // scif_munmap
}

// An Endpoint is one end of a connection, as SCIF has it; scif.md's tables
// give the result of every call in every state. Its methods may be called from
// any goroutine. After Close every method returns status.BadFD, and calls that
// were blocked return status.Reset (Accept: status.Intr).
type Endpoint interface {
	// Bind binds the endpoint to port; 0 chooses the lowest free one from
	// addr.FirstEphemeral, then from addr.ReservedEnd (scif_bind).
	Bind(port addr.Port) (addr.Port, error)

	// Listen makes a bound endpoint listen with room for backlog waiting
	// requests, clamped to 1024 (scif_listen). With allow, of the callers that
	// the node's rules let connect only those are; it is at most
	// access.MaxSubjects long.
	Listen(backlog int, allow ...access.Subject) error

	// Connect connects to dst and returns the local port (scif_connect). It
	// returns when the peer has accepted, refused, when the node's connect
	// time-out has passed (status.Refused) or when ctx is done.
	Connect(ctx context.Context, dst addr.Addr) (addr.Port, error)

	ServingEndpoint

	// TryConnect is Connect on a non-blocking endpoint: status.InProgress
	// until it is decided (PollOut), then the result, once.
	TryConnect(dst addr.Addr) (addr.Port, error)

	// Accept returns the endpoint of the next request and the requester's
	// address (scif_accept with SCIF_ACCEPT_SYNC); TryAccept returns
	// status.Again when there is none.
	Accept(ctx context.Context) (Endpoint, addr.Addr, error)
	TryAccept() (Endpoint, addr.Addr, error)

	// Send sends all of p (scif_send with SCIF_SEND_BLOCK); n < len(p) only
	// with an error. TrySend sends what fits now, which may be nothing.
	Send(ctx context.Context, p []byte) (n int, err error)
	TrySend(p []byte) (n int, err error)

	// Recv waits for at least one byte and returns what is there (the caller
	// loops for SCIF_RECV_BLOCK). TryRecv returns 0 and no error when there is
	// nothing. After the peer's close or loss both first return what arrived.
	Recv(ctx context.Context, p []byte) (n int, err error)
	TryRecv(p []byte) (n int, err error)

	// CloseWrite ends what this end sends, behind what it has sent: the peer receives that,
	// and then ErrPeerShut, and this end goes on receiving. It waits for a Send that is
	// under way. Later Sends fail with status.Reset. Again, it does nothing.
	// status.NotSupp: the node, or the peer's, is too old.
	CloseWrite() error

	// Register opens [off, off+len(p)) of the endpoint's space as a window
	// onto p (scif_register). p is page-aligned and whole pages. The pages stay
	// in use until the window is gone.
	Register(p []byte, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error)

	// Unregister removes the windows in [off, off+n) (scif_unregister).
	Unregister(off, n int64) error

	// WriteTo and ReadFrom copy between the two ends' windows, VWriteTo and
	// VReadFrom between p and the peer's windows (scif_writeto, scif_readfrom,
	// scif_vwriteto, scif_vreadfrom). Without rma.Sync they may return before
	// the bytes have moved; p then belongs to the operation until a fence.
	WriteTo(loff, n, roff int64, flags rma.Flags) error
	ReadFrom(loff, n, roff int64, flags rma.Flags) error
	VWriteTo(p []byte, roff int64, flags rma.Flags) error
	VReadFrom(p []byte, roff int64, flags rma.Flags) error

	// Atomic performs a on the peer's memory and returns the word's old value.
	Atomic(ctx context.Context, a rma.Atomic) (old uint64, err error)

	// PostAtomic performs a on the peer's memory as WriteTo writes without
	// rma.Sync: in order, and complete at the next fence.
	PostAtomic(a rma.Atomic) error

	// PutSignal is WriteTo without flags, and VPutSignal VWriteTo, with a store
	// of p.Value behind the bytes. With p.More nothing is stored in the word, but
	// the bytes to come and the word are checked.
	PutSignal(loff, n int64, p rma.Put) error
	VPutSignal(b []byte, p rma.Put) error

	// Mmap maps [roff, roff+n) of the peer's windows (scif_mmap). It needs
	// both ends on one node and one window; else status.NotSupp.
	Mmap(roff, n int64, prot rma.Prot) (Mapping, error)

	FenceMark(by fence.Side) (fence.Mark, error)       // scif_fence_mark
	FenceWait(ctx context.Context, m fence.Mark) error // scif_fence_wait
	FenceSignal(s fence.Signal) error                  // scif_fence_signal

	// Ready returns the endpoint's current poll events, whatever was asked for.
	Ready() Events

	// Notify makes the endpoint send to ch, without blocking, after every
	// change that may add an event to Ready. stop ends that.
	Notify(ch chan<- struct{}) (stop func())

	// LocalAddr is the bound address, its port 0 before Bind; RemoteAddr the
	// peer's, zero before a connection.
	LocalAddr() addr.Addr
	RemoteAddr() addr.Addr

	// Peer returns who is at the other end of the connection, also after the
	// peer has gone: status.NotConn before a connection.
	Peer() (Peer, error)

	// Close closes the endpoint (scif_close). What was sent is still
	// delivered; RMA in progress completes. A second Close is status.BadFD.
	Close() error

	// Abort is Close by somebody else than the application: the peer gets what was
	// sent, and then Lost(cause) and no end of file.
	Abort(cause string) error

	// Cause says why the connection was lost, in at most MaxCause bytes; "" if it
	// was not, or nobody knows.
	Cause() string
}
