package ipc

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// The bodies of requests, of their answers, and of what the node tells, in
// SPEC.md's order.

type empty struct{}

func (empty) fields(*coder) {}

// magic tells the attach protocol from anything else.
const magic uint64 = 0x0064636972626166 // "fabricd\0" in memory

// hello opens a session.
type hello struct {
	Magic    uint64
	Min, Max uint16
}

func (m *hello) fields(c *coder) {
	c.u64(&m.Magic)
	c.u16(&m.Min)
	c.u16(&m.Max)
	c.reserved(4)
}

// welcome accepts a session.
type welcome struct {
	Version  uint16
	Requests uint32 // that may be outstanding at a time
	Self     Self
}

func (m *welcome) fields(c *coder) {
	c.u16(&m.Version)
	c.reserved(2)
	c.u32(&m.Requests)
	(*selfBody)(&m.Self).fields(c)
}

// refusal is the body of an answer whose code is not OK.
type refusal struct {
	Min, Max uint16 // the node's versions in an answer to HELLO, else 0
	Text     string
}

func (m *refusal) fields(c *coder) {
	c.u16(&m.Min)
	c.u16(&m.Max)
	c.text(&m.Text)
}

type selfBody Self

func (m *selfBody) fields(c *coder) {
	for i := range m.Cluster {
		c.u8(&m.Cluster[i])
	}
	lifeFields(c, &m.Life)
	c.text(&m.Name)
}

func lifeFields(c *coder, l *addr.Life) {
	c.u16((*uint16)(&l.Node))
	c.reserved(2)
	c.u32((*uint32)(&l.Generation))
}

// cancel names the request that is withdrawn.
type cancel struct{ Request uint64 }

func (m *cancel) fields(c *coder) { c.u64(&m.Request) }

// nodesBody is a set of IDs: bit i%8 of byte i/8 stands for node i. Trailing
// zero bytes are left out.
type nodesBody struct {
	Self addr.NodeID
	Set  []byte
}

func (m *nodesBody) fields(c *coder) {
	c.u16((*uint16)(&m.Self))
	c.rest(&m.Set, 1<<16/8)
}

// eventBody is an Event.
type eventBody Event

func (m *eventBody) fields(c *coder) {
	c.u8((*uint8)(&m.Kind))
	c.reserved(3)
	lifeFields(c, &m.Life)
	c.text(&m.Name)
	c.text(&m.Reason)
}

// endpointBody names an endpoint.
type endpointBody struct{ Endpoint uint32 }

func (m *endpointBody) fields(c *coder) { c.u32(&m.Endpoint) }

// address is an addr.Addr.
type address addr.Addr

func (m *address) fields(c *coder) {
	c.u16((*uint16)(&m.Node))
	c.u16((*uint16)(&m.Port))
}

// listenBody carries scif_listen's backlog.
type listenBody struct{ Backlog uint32 } // an int32

func (m *listenBody) fields(c *coder) { c.u32(&m.Backlog) }

// listenAllowBody is listenBody with the callers that may connect, as package
// access writes them.
type listenAllowBody struct {
	Backlog uint32 // an int32
	Allow   []string
}

func (m *listenAllowBody) fields(c *coder) {
	c.u32(&m.Backlog)
	c.texts(&m.Allow, access.MaxSubjects)
}

// peerBody is a Peer.
type peerBody Peer

func (m *peerBody) fields(c *coder) {
	lifeFields(c, &m.Life)
	c.u32(&m.UID)
	c.text(&m.Name)
	c.texts(&m.Labels, maxLabels)
}

// connected describes a new connection. The data socket comes with it.
type connected struct {
	Endpoint      uint32 // of ACCEPT: the new endpoint
	Local, Remote addr.Addr
}

func (m *connected) fields(c *coder) {
	c.u32(&m.Endpoint)
	(*address)(&m.Local).fields(c)
	(*address)(&m.Remote).fields(c)
}

// readyBody is poll events.
type readyBody struct{ Events uint16 }

func (m *readyBody) fields(c *coder) { c.u16(&m.Events) }

// An ending says how a connection's received bytes end.
type ending uint8

const (
	notEnded    ending = 0
	endedClosed ending = 1 // the peer closed
	endedShut   ending = 3 // the peer sends no more, and the connection goes on
	endedLost   ending = 2 // anything else
)

type endingBody struct{ Ending ending }

func (m *endingBody) fields(c *coder) { c.u8((*uint8)(&m.Ending)) }

// causeBody is why a connection is lost, or is to be.
type causeBody struct{ Cause string } // at most MaxCause bytes

func (m *causeBody) fields(c *coder) { c.text(&m.Cause) }

// memAdd announces memory, whose descriptor comes with it.
type memAdd struct{ Size int64 }

func (m *memAdd) fields(c *coder) { c.i64(&m.Size) }

// memoryBody names memory of the session.
type memoryBody struct{ Memory uint32 }

func (m *memoryBody) fields(c *coder) { c.u32(&m.Memory) }

// register opens a window onto [MemOff, MemOff+Len) of Memory.
type register struct {
	Memory           uint32
	Prot             rma.Prot
	Flags            rma.MapFlags
	MemOff, Len, Off int64
}

func (m *register) fields(c *coder) {
	c.u32(&m.Memory)
	c.u32((*uint32)(&m.Flags))
	c.u8((*uint8)(&m.Prot))
	c.reserved(7)
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	c.i64(&m.Off)
}

// offset is an offset of an endpoint's space.
type offset struct{ Off int64 }

func (m *offset) fields(c *coder) { c.i64(&m.Off) }

// span is a range of an endpoint's space.
type span struct{ Off, Len int64 }

func (m *span) fields(c *coder) {
	c.i64(&m.Off)
	c.i64(&m.Len)
}

// transfer is WRITETO or READFROM.
type transfer struct {
	Local, Len, Remote int64
	Flags              rma.Flags
}

func (m *transfer) fields(c *coder) {
	c.i64(&m.Local)
	c.i64(&m.Len)
	c.i64(&m.Remote)
	c.u32((*uint32)(&m.Flags))
	c.reserved(4)
}

// vtransfer is VWRITETO or VREADFROM.
type vtransfer struct {
	Memory              uint32
	Flags               rma.Flags
	MemOff, Len, Remote int64
}

func (m *vtransfer) fields(c *coder) {
	c.u32(&m.Memory)
	c.u32((*uint32)(&m.Flags))
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	c.i64(&m.Remote)
}

// checkBody asks whether a VWRITETO or VREADFROM over more than one piece may begin.
type checkBody struct {
	Remote, Len int64
	Flags       rma.Flags
	Need        rma.Prot
}

func (m *checkBody) fields(c *coder) {
	c.i64(&m.Remote)
	c.i64(&m.Len)
	c.u32((*uint32)(&m.Flags))
	c.u8((*uint8)(&m.Need))
	c.reserved(3)
}

type atomicBody rma.Atomic

func (m *atomicBody) fields(c *coder) {
	c.u8((*uint8)(&m.Op))
	c.u8(&m.Width)
	c.reserved(6)
	c.i64(&m.Offset)
	c.u64(&m.Operand)
	c.u64(&m.Compare)
}

// wordBody is a word of memory.
type wordBody struct{ Value uint64 }

func (m *wordBody) fields(c *coder) { c.u64(&m.Value) }

// mmapBody asks for the memory behind a range of the peer's space.
type mmapBody struct {
	Off, Len int64
	Prot     rma.Prot
}

func (m *mmapBody) fields(c *coder) {
	c.i64(&m.Off)
	c.i64(&m.Len)
	c.u8((*uint8)(&m.Prot))
	c.reserved(7)
}

// mapped is a mapping of the session and where in its memory the range begins.
type mapped struct {
	Mapping uint32
	Off     int64
}

func (m *mapped) fields(c *coder) {
	c.u32(&m.Mapping)
	c.reserved(4)
	c.i64(&m.Off)
}

// sharedBody tells that other applications have a memory, and how many windows are
// left on it.
type sharedBody struct{ Memory, Windows uint32 }

func (m *sharedBody) fields(c *coder) {
	c.u32(&m.Memory)
	c.u32(&m.Windows)
}

// windowBody is a window of the peer. Its memory comes with it if Prot is not 0; else
// the node copies, and MemOff and Size are 0.
type windowBody struct {
	Prot         rma.Prot
	Slot         uint32 // the endpoint's epoch, among the session's
	Epoch        uint64 // before the window was looked for
	Off, Len     int64  // in the peer's space
	MemOff, Size int64  // where the window is in its memory, and the memory's size
}

func (m *windowBody) fields(c *coder) {
	c.u8((*uint8)(&m.Prot))
	c.reserved(3)
	c.u32(&m.Slot)
	c.u64(&m.Epoch)
	c.i64(&m.Off)
	c.i64(&m.Len)
	c.i64(&m.MemOff)
	c.i64(&m.Size)
}

// check reports whether the answer can be true: the window holds roff and, if it has
// memory, lies in such that shm.Map can map, and the epoch in the page's bytes. The
// memory's size is shm.Check's to judge.
func (m *windowBody) check(roff, page int64) error {
	switch {
	case m.Len <= 0, m.Off < 0, m.Off > roff, m.Len <= roff-m.Off, m.Off+m.Len < 0,
		m.Prot != 0 && (m.MemOff < 0 || m.Size < m.Len || m.MemOff > m.Size-m.Len),
		m.Prot&^(rma.ProtRead|rma.ProtWrite) != 0,
		int64(m.Slot) >= page/8:
		return fmt.Errorf("node tells of a window that cannot be: %+v: %w", *m, status.Protocol)
	}
	return nil
}

// sideBody selects whose operations a mark covers.
type sideBody struct{ Side fence.Side }

func (m *sideBody) fields(c *coder) {
	c.u8((*uint8)(&m.Side))
	c.reserved(7)
}

type markBody fence.Mark

func (m *markBody) fields(c *coder) {
	c.u8((*uint8)(&m.Side))
	c.reserved(7)
	c.u64(&m.Seq)
}

type signalBody fence.Signal

func (m *signalBody) fields(c *coder) {
	c.u8((*uint8)(&m.By))
	c.u8((*uint8)(&m.Where))
	c.reserved(6)
	c.i64(&m.LocalOffset)
	c.u64(&m.LocalValue)
	c.i64(&m.RemoteOffset)
	c.u64(&m.RemoteValue)
}

// watchBody begins or ends the telling of node events.
type watchBody struct{ On uint8 }

func (m *watchBody) fields(c *coder) { c.u8(&m.On) }

// channelBody describes a channel: two rings, one behind the other.
type channelBody struct {
	Side        uint8  // 0 writes the first ring and reads the second, 1 the other way round
	Slots, Data uint32 // of each ring
}

func (m *channelBody) fields(c *coder) {
	c.u8(&m.Side)
	c.reserved(3)
	c.u32(&m.Slots)
	c.u32(&m.Data)
	c.reserved(4)
}

// channelSize is the size of a channel's memory: two rings.
func channelSize(p ring.Params) int64 { return shm.Align(2 * int64(p.Size())) }

// ringsBody says how the node wants its channels used.
type ringsBody struct {
	Release uint8         // ring.Params.Release
	Huge    shm.HugePages // of the memory
}

func (m *ringsBody) fields(c *coder) {
	c.u8(&m.Release)
	c.u8((*uint8)(&m.Huge))
	c.reserved(6)
}

// bellBody asks for a bell of a channel.
type bellBody struct{ Which uint8 } // bellOut or bellIn

func (m *bellBody) fields(c *coder) {
	c.u8(&m.Which)
	c.reserved(7)
}

// The bells of a channel, as one side sees them.
const (
	bellOut uint8 = 1 // of the ring that it writes
	bellIn  uint8 = 2 // of the ring that it reads
)

// joinedBody says whether the application can use its channel.
type joinedBody struct {
	OK  uint8
	Why string // if not; else why it is no better one
}

func (m *joinedBody) fields(c *coder) {
	c.u8(&m.OK)
	c.reserved(3)
	c.text(&m.Why)
}

// putBody is PUTSIGNAL.
type putBody struct {
	Local, Len int64
	Put        rma.Put
}

func (m *putBody) fields(c *coder) {
	c.i64(&m.Local)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

// vputBody is VPUTSIGNAL.
type vputBody struct {
	Memory      uint32
	MemOff, Len int64
	Put         rma.Put
}

func (m *vputBody) fields(c *coder) {
	c.u32(&m.Memory)
	c.reserved(4)
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

func putFields(c *coder, p *rma.Put) {
	c.i64(&p.Offset)
	c.i64(&p.Word)
	c.u64(&p.Value)
	c.i64(&p.More)
}

// A pathKeyBody is the key of the application that asks.
type pathKeyBody struct{ Key path.Hash }

func (m *pathKeyBody) fields(c *coder) {
	for i := range m.Key {
		c.u8(&m.Key[i])
	}
}

// A pathBody describes one end of a path, whose socket comes with it.
type pathBody struct {
	Flags   uint8     // pathClient, pathPlaintext
	Peer    path.Hash // of the key at the other end
	Binding path.Binding
}

func (m *pathBody) fields(c *coder) {
	c.u8(&m.Flags)
	c.reserved(7)
	for i := range m.Peer {
		c.u8(&m.Peer[i])
	}
	for i := range m.Binding {
		c.u8(&m.Binding[i])
	}
}

// The flags of a pathBody.
const (
	pathClient    = 1 // this end opens TLS
	pathPlaintext = 2 // there is none
)
