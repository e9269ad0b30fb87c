package fabric

import "github.com/fabricd/fabricd/fabric/addr"

// A NodeID names a node of the cluster: a number from 0 to 65,519 that the host has leased
// to it. It is [addr.NodeID].
type NodeID = addr.NodeID

const (
	// Host is the node ID of the cluster's host.
	Host NodeID = 0
	// NoNode is the ID of no node.
	NoNode NodeID = 0xFFFF
)

// A Port is a number of 16 bits on one node; port 0 asks Bind to choose one. It is
// [addr.Port].
type Port = addr.Port

const (
	// AdminEnd is the first port that needs no privilege (SCIF_ADMIN_PORT_END).
	AdminEnd Port = 1024
	// ReservedEnd is the first port that Bind(0) may choose (SCIF_PORT_RSVD).
	ReservedEnd Port = 1088
	// FirstEphemeral is the first port that Bind(0) chooses. It chooses one from
	// ReservedEnd on only when all from here on are taken.
	FirstEphemeral Port = 32768
)

// An Addr is the address of an endpoint (struct scif_portID): it has the fields Node, a
// [NodeID], and Port, a [Port]. String returns "node:port", which [addr.Parse] parses; with
// Network, which returns "scif", it is a [net.Addr]. It is [addr.Addr].
type Addr = addr.Addr

// A Generation counts the incarnations of a node ID, from 1 on: each grant of the same ID has the
// next one. It is [addr.Generation].
type Generation = addr.Generation

// An Incarnation is one generation of one node ID: it has the fields Node, a [NodeID], and
// Generation. Two incarnations of the same ID share no connection and no window. String returns
// "node.generation". It is [addr.Incarnation].
type Incarnation = addr.Incarnation

// A UUID is the identity of a cluster, of 16 bytes; the zero UUID belongs to none. String
// returns the usual form. It is [addr.UUID].
type UUID = addr.UUID

// A Prot is the set of accesses that a window allows its peer (SCIF_PROT_*).
type Prot uint8

// The bits of a Prot.
const (
	ProtRead  Prot = 1
	ProtWrite Prot = 2
)

// MapFlags select how [Endpoint.Register] takes its offset (SCIF_MAP_*).
type MapFlags uint32

// MapFixed takes Register's offset as given, or fails.
const MapFixed MapFlags = 0x10

// RMAFlags select how a transfer is done (SCIF_RMA_*). They are a set.
type RMAFlags uint32

// The bits of RMAFlags.
const (
	UseCPU   RMAFlags = 1 // a hint, accepted
	UseCache RMAFlags = 2 // a hint, accepted
	Sync     RMAFlags = 4 // return when the transfer has completed
	Ordered  RMAFlags = 8 // the last 64-byte line becomes visible after the rest
)

// A Side selects the end whose transfers a fence covers (SCIF_FENCE_INIT_*).
type Side uint8

// The values of a Side.
const (
	InitSelf Side = 1 // transfers that this end initiated
	InitPeer Side = 2 // transfers that the peer initiated
)

// A Where selects the ends at which a signal is stored (SCIF_SIGNAL_*). It is a set.
type Where uint8

// The bits of a Where.
const (
	SignalLocal  Where = 0x10
	SignalRemote Where = 0x20
)

// Events is the set of events that [Node.Poll] reports, with poll(2)'s numbers (SCIF_POLL*).
type Events int16

// The bits of Events.
const (
	PollIn   Events = 0x01 // bytes to receive, or a request to accept
	PollOut  Events = 0x04 // room to send, or a TryConnect is decided
	PollErr  Events = 0x08 // the endpoint is neither connected nor listening
	PollHup  Events = 0x10 // the peer closed or was lost
	PollNval Events = 0x20 // the endpoint is closed
	// PollRdHup: the peer sends no more (Conn.CloseWrite), and everything was received. Poll
	// reports it only where it is asked for; PollIn comes with it.
	PollRdHup Events = 0x2000
)

// PageSize is the granularity of Register, Unregister and Mmap in bytes, on
// every machine.
const PageSize = 4096

// FirstOffset is the first offset that Register chooses on a fresh endpoint.
const FirstOffset int64 = 0x4000000000000000

// A Mark is a point in the order of one side's transfers; see
// [Endpoint.FenceMark].
type Mark struct {
	Side Side
	Seq  uint64 // transfers begun before the mark
}

// A Signal has the values that [Endpoint.FenceSignal] stores, their places, and the end whose
// transfers it follows. Offsets that Where does not select are ignored.
type Signal struct {
	By           Side
	Where        Where
	LocalOffset  int64 // a multiple of 4, in this end's windows
	LocalValue   uint64
	RemoteOffset int64 // a multiple of 4, in the peer's windows
	RemoteValue  uint64
}
