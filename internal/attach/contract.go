// Package attach is the contract between an application and its node. Client implements the
// application's end (Session, Endpoint) and the engine the node's (NodeSession, NodeEndpoint). The
// attach protocol joins them over a Unix socket: package proto has its format (SPEC.md); client and
// server are its two ends and do not import each other. An application in its node's process uses
// that protocol too, except for the messages of its connections: the endpoints of those are the
// node's own (client.AttachTo).
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

// Credentials identify an application. The kernel vouches for them (SO_PEERCRED).
type Credentials struct {
	UID, GID uint32
	PID      int32
	// Admin allows ports below addr.AdminEnd.
	Admin bool
}

// Self is a node's identity in the cluster.
type Self struct {
	Cluster     addr.UUID
	Incarnation addr.Incarnation // Generation 0 while the node has no lease
	Name        string
}

// An EventKind is one of SCIF's node events.
type EventKind uint8

const (
	NodeAdded   EventKind = 1 // SCIF_NODE_ADDED
	NodeRemoved EventKind = 2 // SCIF_NODE_REMOVED
)

// An Event reports that an incarnation of a node began or ended. A session gets at most one
// NodeAdded for an incarnation and then at most one NodeRemoved, and NodeRemoved only after every
// operation towards that incarnation has failed.
type Event struct {
	Kind        EventKind
	Incarnation addr.Incarnation
	Name        string
	Reason      string // of a removal: "left", "crashed", "silent", "restarted", …
}

// A Peer is the application at the other end of a connection, as its node
// vouches for it. Name and Labels are those that the node table had when the
// connection was made; Labels must not be changed.
type Peer struct {
	Incarnation addr.Incarnation
	Name        string
	Labels      []string
	UID         uint32 // access.UnknownUID if unknown
}

// Events are poll's events, with poll(2)'s numbers (SCIF_POLL*).
type Events int16

const (
	PollIn   Events = 0x01
	PollOut  Events = 0x04
	PollErr  Events = 0x08
	PollHup  Events = 0x10
	PollNval Events = 0x20
	// PollRdHup comes with PollIn when the peer has shut down its sending side and every byte was
	// received.
	PollRdHup Events = 0x2000
)

// A Session is one application's use of its node. Its methods may be called
// from any goroutine.
type Session interface {
	sessionCalls

	// Open returns a new unbound endpoint (scif_open).
	Open() (Endpoint, error)

	// OpenContext is Open whose wait for the node ends with ctx.
	OpenContext(ctx context.Context) (Endpoint, error)

	// Alloc returns zeroed memory that Register accepts, n bytes rounded up to
	// whole pages and page-aligned. It is unmapped by Memory.Close, once no window uses it.
	Alloc(n int) (Memory, error)
}

// sessionCalls are common to both ends of the contract.
type sessionCalls interface {
	// Self returns the node's current ID and generation.
	Self() Self

	// Nodes returns the IDs of all live nodes, this one included, ascending,
	// and this node's own ID (scif_get_nodeIDs).
	Nodes() (ids []addr.NodeID, self addr.NodeID, err error)

	Directory

	// Watch calls fn for every node event from now on, one at a time and in
	// order, from a goroutine of the session. The nodes that are live now are
	// not reported. cancel does not wait for a call of fn that is under way or about to begin, and
	// there is none after that.
	Watch(fn func(Event)) (cancel func())

	// Close ends every endpoint of the session, by Abort if it is connected, and waits until all
	// its resources are released. A second Close does nothing.
	Close() error

	// Done is closed when the session has ended: Close was called or the node
	// went away.
	Done() <-chan struct{}
}

// Memory is page-aligned memory for windows.
type Memory interface {
	Bytes() []byte
	// SmallPages returns why huge pages were requested and not used; "" otherwise.
	SmallPages() string
	// Close frees the memory once no window holds it. The bytes must not be used afterwards.
	Close() error
}

// A Mapping is a peer's window memory mapped here (scif_mmap). It stays valid until Close, also
// after the end of the connection.
type Mapping interface {
	Bytes() []byte
	Close() error // scif_munmap
}

// An Endpoint is one end of a connection, as SCIF has it; scif.md's tables
// give the result of every call in every state. Its methods may be called from
// any goroutine. After Close every method returns status.BadFD, and calls that
// were blocked return status.Reset (Accept: status.Intr).
type Endpoint interface {
	endpointCalls

	// Accept returns the endpoint of the next request and the requester's
	// address (scif_accept with SCIF_ACCEPT_SYNC); TryAccept returns
	// status.Again when there is none.
	Accept(ctx context.Context) (Endpoint, addr.Addr, error)
	TryAccept() (Endpoint, addr.Addr, error)

	// Register opens [off, off+len(p)) of the endpoint's space as a window
	// onto p (scif_register). p is page-aligned and whole pages. The pages stay
	// in use until the window is gone.
	Register(p []byte, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error)

	// Mmap maps [roff, roff+n) of the peer's windows (scif_mmap). It needs
	// both ends on one node and one window; else status.NotSupp.
	Mmap(roff, n int64, prot rma.Prot) (Mapping, error)

	// NodesEnd returns the node's end of the endpoint if the node is in this process; else nil.
	NodesEnd() NodeEndpoint

	// Plain reports whether received bytes (in) come, or sent ones go, through a path without TLS.
	Plain(in bool) bool
	// Splice waits until move has taken received bytes from the path's socket, or written sent ones
	// to it: it returns EAGAIN if it cannot yet. Where it moves none a Recv or a Send has to follow.
	Splice(in bool, move func(fd int) error)
}

// endpointCalls are common to both ends of the contract.
type endpointCalls interface {
	// Bind binds the endpoint to port; 0 chooses the lowest free one from
	// addr.FirstEphemeral, then from addr.ReservedEnd (scif_bind).
	Bind(port addr.Port) (addr.Port, error)

	// Listen makes a bound endpoint listen with a queue of backlog requests, clamped to 1024
	// (scif_listen). Without allow, every caller that the node's rules admit may connect. With
	// allow, only the listed ones of those may; it has at most access.MaxSubjects entries.
	Listen(backlog int, allow ...access.Subject) error

	// Connect connects to dst and returns the local port (scif_connect). It returns when the peer
	// has accepted or refused, when the node's connect time-out has passed (status.Refused) or when
	// ctx is done.
	Connect(ctx context.Context, dst addr.Addr) (addr.Port, error)

	// Serve makes the endpoint, which is bound and does not listen yet, serve a name
	// from its Listen to its close. status.InUse: another endpoint of the node has the
	// name; status.NoMemory: the node serves MaxServices.
	Serve(service string) error

	// ConnectService is Connect to dst if dst serves the name at that moment; else status.Refused.
	// A peer too old for services is connected to without the check.
	ConnectService(ctx context.Context, dst addr.Addr, service string) (addr.Port, error)

	// TryConnect is Connect on a non-blocking endpoint: status.InProgress
	// until it is decided (PollOut), then the result, once.
	TryConnect(dst addr.Addr) (addr.Port, error)

	// Send sends all of p (scif_send with SCIF_SEND_BLOCK); n < len(p) only with an error. TrySend
	// sends the bytes that fit now, possibly none.
	Send(ctx context.Context, p []byte) (n int, err error)
	TrySend(p []byte) (n int, err error)

	// Recv waits for at least one byte and returns the bytes that have arrived (the caller loops
	// for SCIF_RECV_BLOCK). TryRecv returns 0 and no error if there are none. After the peer's
	// close or loss both first return the bytes that arrived before it.
	Recv(ctx context.Context, p []byte) (n int, err error)
	TryRecv(p []byte) (n int, err error)

	// CloseWrite shuts down the sending side: the peer receives all earlier bytes and then
	// ErrPeerShut, and this end still receives. It waits for a running Send. Later Sends fail with
	// status.Reset. A second CloseWrite does nothing. status.NotSupp: this node or the peer's is
	// too old.
	CloseWrite() error

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

	// PutSignal is WriteTo without flags, and VPutSignal VWriteTo, followed by a store of p.Value.
	// If p.More is not 0, the word is not stored; it and the bytes to come are checked.
	PutSignal(loff, n int64, p rma.Put) error
	VPutSignal(b []byte, p rma.Put) error

	FenceMark(by fence.Side) (fence.Mark, error)       // scif_fence_mark
	FenceWait(ctx context.Context, m fence.Mark) error // scif_fence_wait
	FenceSignal(s fence.Signal) error                  // scif_fence_signal

	// Ready returns the endpoint's current poll events, regardless of the requested ones.
	Ready() Events

	// Notify makes the endpoint send to ch, without blocking, after every
	// change that may add an event to Ready. stop ends that.
	Notify(ch chan<- struct{}) (stop func())

	// LocalAddr is the bound address, its port 0 before Bind; RemoteAddr the
	// peer's, zero before a connection.
	LocalAddr() addr.Addr
	RemoteAddr() addr.Addr

	// Peer returns the application at the other end of the connection, also after the peer's end:
	// status.NotConn before a connection.
	Peer() (Peer, error)

	// Close closes the endpoint (scif_close). Sent bytes are still delivered; RMA in progress
	// completes. A second Close is status.BadFD.
	Close() error

	// Abort closes the endpoint on the application's behalf: the peer gets the sent bytes, and then
	// Lost(cause) instead of the end of file.
	Abort(cause string) error

	// Cause returns why the connection was lost, in at most MaxCause bytes; "" if it was not lost
	// or the cause is unknown.
	Cause() string
}
