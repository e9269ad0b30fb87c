package proto

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// The bodies of requests, answers and notifications, in SPEC.md's order.

type empty struct{}

func (empty) fields(*Coder) {}

// Magic distinguishes the attach protocol from others.
const Magic uint64 = 0x0064636972626166 // "fabricd\0" in memory

// Hello opens a session.
type Hello struct {
	Magic    uint64
	Min, Max uint16
}

func (m *Hello) fields(c *Coder) {
	c.u64(&m.Magic)
	c.u16(&m.Min)
	c.u16(&m.Max)
	c.reserved(4)
}

// Welcome accepts a session.
type Welcome struct {
	Version  uint16
	Requests uint32 // largest number of unanswered requests
	Self     attach.Self
}

func (m *Welcome) fields(c *Coder) {
	c.u16(&m.Version)
	c.reserved(2)
	c.u32(&m.Requests)
	(*SelfBody)(&m.Self).fields(c)
}

// Refusal is the body of an answer whose code is not OK.
type Refusal struct {
	Min, Max uint16 // the node's versions in an answer to HELLO, else 0
	Text     string
}

func (m *Refusal) fields(c *Coder) {
	c.u16(&m.Min)
	c.u16(&m.Max)
	c.text(&m.Text)
}

// SelfBody is an attach.Self.
type SelfBody attach.Self

func (m *SelfBody) fields(c *Coder) {
	for i := range m.Cluster {
		c.u8(&m.Cluster[i])
	}
	incarnationFields(c, &m.Incarnation)
	c.text(&m.Name)
}

func incarnationFields(c *Coder, l *addr.Incarnation) {
	c.u16((*uint16)(&l.Node))
	c.reserved(2)
	c.u32((*uint32)(&l.Generation))
}

// Cancel names the request to be cancelled.
type Cancel struct{ Request uint64 }

func (m *Cancel) fields(c *Coder) { c.u64(&m.Request) }

// NodesBody is a set of IDs: bit i%8 of byte i/8 stands for node i. Trailing
// zero bytes are left out.
type NodesBody struct {
	Self addr.NodeID
	Set  []byte
}

func (m *NodesBody) fields(c *Coder) {
	c.u16((*uint16)(&m.Self))
	c.rest(&m.Set, 1<<16/8)
}

// EventBody is an attach.Event.
type EventBody attach.Event

func (m *EventBody) fields(c *Coder) {
	c.u8((*uint8)(&m.Kind))
	c.reserved(3)
	incarnationFields(c, &m.Incarnation)
	c.text(&m.Name)
	c.text(&m.Reason)
}

// EndpointBody names an endpoint.
type EndpointBody struct{ Endpoint uint32 }

func (m *EndpointBody) fields(c *Coder) { c.u32(&m.Endpoint) }

// Address is an addr.Addr.
type Address addr.Addr

func (m *Address) fields(c *Coder) {
	c.u16((*uint16)(&m.Node))
	c.u16((*uint16)(&m.Port))
}

// ListenBody carries scif_listen's backlog.
type ListenBody struct{ Backlog uint32 } // an int32

func (m *ListenBody) fields(c *Coder) { c.u32(&m.Backlog) }

// ListenAllowBody is ListenBody with the callers that may connect, as package
// access writes them.
type ListenAllowBody struct {
	Backlog uint32 // an int32
	Allow   []string
}

func (m *ListenAllowBody) fields(c *Coder) {
	c.u32(&m.Backlog)
	c.texts(&m.Allow, access.MaxSubjects)
}

// PeerBody is an attach.Peer.
type PeerBody attach.Peer

func (m *PeerBody) fields(c *Coder) {
	incarnationFields(c, &m.Incarnation)
	c.u32(&m.UID)
	c.text(&m.Name)
	c.texts(&m.Labels, MaxLabels)
}

// Connected describes a new connection. The data socket is attached to the packet.
type Connected struct {
	Endpoint      uint32 // of ACCEPT: the new endpoint
	Local, Remote addr.Addr
}

func (m *Connected) fields(c *Coder) {
	c.u32(&m.Endpoint)
	(*Address)(&m.Local).fields(c)
	(*Address)(&m.Remote).fields(c)
}

// ReadyBody is poll events.
type ReadyBody struct{ Events uint16 }

func (m *ReadyBody) fields(c *Coder) { c.u16(&m.Events) }

// An Ending is the way in which a connection's received bytes end.
type Ending uint8

const (
	notEnded    Ending = 0
	EndedClosed Ending = 1 // the peer closed
	EndedShut   Ending = 3 // the peer sends no more, and the connection stays open
	EndedLost   Ending = 2 // anything else
)

// EndingBody answers ENDING.
type EndingBody struct{ Ending Ending }

func (m *EndingBody) fields(c *Coder) { c.u8((*uint8)(&m.Ending)) }

// CauseBody is why a connection is lost, or why it is to be aborted.
type CauseBody struct{ Cause string } // at most MaxCause bytes

func (m *CauseBody) fields(c *Coder) { c.text(&m.Cause) }

// MemAdd announces memory; its descriptor is attached to the packet.
type MemAdd struct{ Size int64 }

func (m *MemAdd) fields(c *Coder) { c.i64(&m.Size) }

// MemoryBody names memory of the session.
type MemoryBody struct{ Memory uint32 }

func (m *MemoryBody) fields(c *Coder) { c.u32(&m.Memory) }

// Register opens a window onto [MemOff, MemOff+Len) of Memory.
type Register struct {
	Memory           uint32
	Prot             rma.Prot
	Flags            rma.MapFlags
	MemOff, Len, Off int64
}

func (m *Register) fields(c *Coder) {
	c.u32(&m.Memory)
	c.u32((*uint32)(&m.Flags))
	c.u8((*uint8)(&m.Prot))
	c.reserved(7)
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	c.i64(&m.Off)
}

// Offset is an offset of an endpoint's space.
type Offset struct{ Off int64 }

func (m *Offset) fields(c *Coder) { c.i64(&m.Off) }

// Span is a range of an endpoint's space.
type Span struct{ Off, Len int64 }

func (m *Span) fields(c *Coder) {
	c.i64(&m.Off)
	c.i64(&m.Len)
}

// Transfer is WRITETO or READFROM.
type Transfer struct {
	Local, Len, Remote int64
	Flags              rma.Flags
}

func (m *Transfer) fields(c *Coder) {
	c.i64(&m.Local)
	c.i64(&m.Len)
	c.i64(&m.Remote)
	c.u32((*uint32)(&m.Flags))
	c.reserved(4)
}

// VTransfer is VWRITETO or VREADFROM.
type VTransfer struct {
	Memory              uint32
	Flags               rma.Flags
	MemOff, Len, Remote int64
}

func (m *VTransfer) fields(c *Coder) {
	c.u32(&m.Memory)
	c.u32((*uint32)(&m.Flags))
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	c.i64(&m.Remote)
}

// CheckBody asks whether a VWRITETO or VREADFROM of more than one piece may begin.
type CheckBody struct {
	Remote, Len int64
	Flags       rma.Flags
	Need        rma.Prot
}

func (m *CheckBody) fields(c *Coder) {
	c.i64(&m.Remote)
	c.i64(&m.Len)
	c.u32((*uint32)(&m.Flags))
	c.u8((*uint8)(&m.Need))
	c.reserved(3)
}

// AtomicBody is an rma.Atomic.
type AtomicBody rma.Atomic

func (m *AtomicBody) fields(c *Coder) {
	c.u8((*uint8)(&m.Op))
	c.u8(&m.Width)
	c.reserved(6)
	c.i64(&m.Offset)
	c.u64(&m.Operand)
	c.u64(&m.Compare)
}

// WordBody is a word of memory.
type WordBody struct{ Value uint64 }

func (m *WordBody) fields(c *Coder) { c.u64(&m.Value) }

// MmapBody asks for the memory behind a range of the peer's space.
type MmapBody struct {
	Off, Len int64
	Prot     rma.Prot
}

func (m *MmapBody) fields(c *Coder) {
	c.i64(&m.Off)
	c.i64(&m.Len)
	c.u8((*uint8)(&m.Prot))
	c.reserved(7)
}

// Mapped is a mapping of the session and the offset of the range in its memory.
type Mapped struct {
	Mapping uint32
	Off     int64
}

func (m *Mapped) fields(c *Coder) {
	c.u32(&m.Mapping)
	c.reserved(4)
	c.i64(&m.Off)
}

// SharedBody reports that other applications have a memory mapped, and the number of windows
// remaining on it.
type SharedBody struct{ Memory, Windows uint32 }

func (m *SharedBody) fields(c *Coder) {
	c.u32(&m.Memory)
	c.u32(&m.Windows)
}

// WindowBody is a window of the peer. Its memory is attached to the packet if Prot is not 0; else
// the node copies, and MemOff and Size are 0.
type WindowBody struct {
	Prot         rma.Prot
	Slot         uint32 // index of the endpoint's epoch in the session's page
	Epoch        uint64 // read before the lookup of the window
	Off, Len     int64  // in the peer's space
	MemOff, Size int64  // the window's offset in its memory, and the memory's size
}

func (m *WindowBody) fields(c *Coder) {
	c.u8((*uint8)(&m.Prot))
	c.reserved(3)
	c.u32(&m.Slot)
	c.u64(&m.Epoch)
	c.i64(&m.Off)
	c.i64(&m.Len)
	c.i64(&m.MemOff)
	c.i64(&m.Size)
}

// Check reports whether the answer is consistent: the window contains roff, its memory, if any,
// contains it as shm.Map requires, and the epoch lies in the page. shm.Check checks the memory's
// size.
func (m *WindowBody) Check(roff, page int64) error {
	switch {
	case m.Len <= 0, m.Off < 0, m.Off > roff, m.Len <= roff-m.Off, m.Off+m.Len < 0,
		m.Prot != 0 && (m.MemOff < 0 || m.Size < m.Len || m.MemOff > m.Size-m.Len),
		m.Prot&^(rma.ProtRead|rma.ProtWrite) != 0,
		int64(m.Slot) >= page/8:
		return fmt.Errorf("node reports a window that cannot be: %+v: %w", *m, status.Protocol)
	}
	return nil
}

// SideBody selects the side whose operations a mark covers.
type SideBody struct{ Side fence.Side }

func (m *SideBody) fields(c *Coder) {
	c.u8((*uint8)(&m.Side))
	c.reserved(7)
}

// MarkBody is a fence.Mark.
type MarkBody fence.Mark

func (m *MarkBody) fields(c *Coder) {
	c.u8((*uint8)(&m.Side))
	c.reserved(7)
	c.u64(&m.Seq)
}

// SignalBody is a fence.Signal.
type SignalBody fence.Signal

func (m *SignalBody) fields(c *Coder) {
	c.u8((*uint8)(&m.By))
	c.u8((*uint8)(&m.Where))
	c.reserved(6)
	c.i64(&m.LocalOffset)
	c.u64(&m.LocalValue)
	c.i64(&m.RemoteOffset)
	c.u64(&m.RemoteValue)
}

// WatchBody turns the notification of node events on or off.
type WatchBody struct{ On uint8 }

func (m *WatchBody) fields(c *Coder) { c.u8(&m.On) }

// ShmPathBody describes a shared-memory path: two rings, one behind the other.
type ShmPathBody struct {
	Side        uint8  // 0: writes the first ring and reads the second; 1: the reverse
	Slots, Data uint32 // of each ring
}

func (m *ShmPathBody) fields(c *Coder) {
	c.u8(&m.Side)
	c.reserved(3)
	c.u32(&m.Slots)
	c.u32(&m.Data)
	c.reserved(4)
}

// RingsSize is the size of a shared-memory path: two rings.
func RingsSize(p ring.Params) int64 { return shm.Align(2 * int64(p.Size())) }

// RingsBody is the node's settings for shared-memory paths.
type RingsBody struct {
	Release uint8         // ring.Params.Release
	Huge    shm.HugePages // of the memory
}

func (m *RingsBody) fields(c *Coder) {
	c.u8(&m.Release)
	c.u8((*uint8)(&m.Huge))
	c.reserved(6)
}

// DoorbellBody asks for a doorbell of a shared-memory path.
type DoorbellBody struct{ Which uint8 } // DoorbellOut or DoorbellIn

func (m *DoorbellBody) fields(c *Coder) {
	c.u8(&m.Which)
	c.reserved(7)
}

// The doorbells of a shared-memory path, as one side sees them.
const (
	DoorbellOut uint8 = 1 // of the ring that this side writes
	DoorbellIn  uint8 = 2 // of the ring that this side reads
)

// JoinedBody reports whether the application can use its shared-memory path.
type JoinedBody struct {
	OK  uint8
	Why string // the reason if it cannot; else why the path has no huge pages
}

func (m *JoinedBody) fields(c *Coder) {
	c.u8(&m.OK)
	c.reserved(3)
	c.text(&m.Why)
}

// PutBody is PUTSIGNAL.
type PutBody struct {
	Local, Len int64
	Put        rma.Put
}

func (m *PutBody) fields(c *Coder) {
	c.i64(&m.Local)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

// VPutBody is VPUTSIGNAL.
type VPutBody struct {
	Memory      uint32
	MemOff, Len int64
	Put         rma.Put
}

func (m *VPutBody) fields(c *Coder) {
	c.u32(&m.Memory)
	c.reserved(4)
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

func putFields(c *Coder, p *rma.Put) {
	c.i64(&p.Offset)
	c.i64(&p.Word)
	c.u64(&p.Value)
	c.i64(&p.More)
}

// A PathKeyBody is the key of the application that asks for a path.
type PathKeyBody struct{ Key path.Hash }

func (m *PathKeyBody) fields(c *Coder) {
	for i := range m.Key {
		c.u8(&m.Key[i])
	}
}

// A PathRestBody is some of the last bytes of a path, as they go to the socket.
type PathRestBody struct{ Bytes []byte }

// MaxPathRest bounds the bytes of one PathRestBody.
const MaxPathRest = MaxFrame - HeaderLen - 4

func (m *PathRestBody) fields(c *Coder) {
	n := uint32(len(m.Bytes))
	c.u32(&n)
	c.rest(&m.Bytes, MaxPathRest)
	c.got.Require(c.encoding || int(n) == len(m.Bytes))
}

// A PathBody describes one end of a path. Its socket is attached to the packet.
type PathBody struct {
	Flags   uint8     // PathClient, PathPlaintext
	Peer    path.Hash // of the key at the other end
	Binding path.Binding
}

func (m *PathBody) fields(c *Coder) {
	c.u8(&m.Flags)
	c.reserved(7)
	for i := range m.Peer {
		c.u8(&m.Peer[i])
	}
	for i := range m.Binding {
		c.u8(&m.Binding[i])
	}
}

// The flags of a PathBody.
const (
	PathClient    = 1 // this end is the TLS client
	PathPlaintext = 2 // no TLS
)
