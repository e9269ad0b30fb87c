package fabric

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/rma"
)

// The small values of package addr, under the names that programs use.
type (
	NodeID     = addr.NodeID
	Port       = addr.Port
	Addr       = addr.Addr // struct scif_portID; a net.Addr
	Generation = addr.Generation
	Life       = addr.Life
	UUID       = addr.UUID
)

const (
	// Host is the node ID of the cluster's host.
	Host = addr.Host
	// NoNode is the ID of no node.
	NoNode = addr.NoNode
	// AdminEnd is the first port that needs no privilege (SCIF_ADMIN_PORT_END).
	AdminEnd = addr.AdminEnd
	// ReservedEnd is the first port that Bind(0) may choose (SCIF_PORT_RSVD).
	ReservedEnd = addr.ReservedEnd
	// FirstEphemeral is the first port that Bind(0) chooses. It chooses one from
	// ReservedEnd on only when all from here on are taken.
	FirstEphemeral = addr.FirstEphemeral
)

// Each family of SCIF's flags has a type of its own.
type (
	Prot     = rma.Prot     // SCIF_PROT_*: what the peer may do with a window
	MapFlags = rma.MapFlags // SCIF_MAP_*: how Register takes its offset
	RMAFlags = rma.Flags    // SCIF_RMA_*: how a transfer is done
	Side     = fence.Side   // SCIF_FENCE_INIT_*: whose transfers a fence covers
	Where    = fence.Where  // SCIF_SIGNAL_*: where a signal is stored
	Events   = ipc.Events   // SCIF_POLL*
)

const (
	ProtRead  = rma.ProtRead
	ProtWrite = rma.ProtWrite

	// MapFixed takes Register's offset as given, or fails.
	MapFixed = rma.MapFixed

	UseCPU   = rma.UseCPU   // a hint, accepted
	UseCache = rma.UseCache // a hint, accepted
	Sync     = rma.Sync     // return when the transfer has completed
	Ordered  = rma.Ordered  // the last 64-byte line becomes visible after the rest

	InitSelf = fence.InitSelf // transfers that this end initiated
	InitPeer = fence.InitPeer // transfers that the peer initiated

	SignalLocal  = fence.SignalLocal
	SignalRemote = fence.SignalRemote

	PollIn   = ipc.PollIn   // bytes to receive, or a request to accept
	PollOut  = ipc.PollOut  // room to send, or a TryConnect is decided
	PollErr  = ipc.PollErr  // the endpoint is neither connected nor listening
	PollHup  = ipc.PollHup  // the peer closed or was lost
	PollNval = ipc.PollNval // the endpoint is closed
	// PollRdHup: the peer sends no more (Conn.CloseWrite), and everything was received. Poll
	// reports it only where it is asked for; PollIn comes with it.
	PollRdHup = ipc.PollRdHup
)

// PageSize is the granularity of Register, Unregister and Mmap in bytes, on
// every machine.
const PageSize = rma.PageSize

// FirstOffset is the first offset that Register chooses on a fresh endpoint.
const FirstOffset = rma.FirstOffset

type (
	// A Mark is a point in the order of one side's transfers; see
	// [Endpoint.FenceMark].
	Mark = fence.Mark
	// A Signal says what [Endpoint.FenceSignal] stores, where and after what.
	Signal = fence.Signal
)
