package scenario

import (
	"time"

	"github.com/fabricd/fabricd/internal/faults"
)

// A Link breaks directed links. Its fields are those of [faults.Rule].
type Link struct {
	From  NodeSet `yaml:"from" need:"true" may:"others" doc:"sending nodes"`
	To    NodeSet `yaml:"to" need:"true" may:"others" doc:"receiving nodes"`
	Both  bool    `yaml:"both" doc:"the other direction too"`
	Plane Plane   `yaml:"plane" doc:"which traffic; all if it is left out"`

	Drop      Percent  `yaml:"drop" doc:"share of packets that are lost"`
	Duplicate Percent  `yaml:"duplicate" doc:"share of packets that come twice"`
	Reorder   Percent  `yaml:"reorder" doc:"share of packets that are overtaken"`
	Corrupt   Percent  `yaml:"corrupt" doc:"share of packets of which a byte is changed"`
	Delay     Duration `yaml:"delay" doc:"added to the time in flight"`
	Jitter    Duration `yaml:"jitter" doc:"and a random share of this"`
	Shape     Shape    `yaml:"shape" doc:"how jitter is distributed; uniform if it is left out"`
	Rate      Rate     `yaml:"rate" doc:"bandwidth of each direction of each pair"`
	Buffer    Size     `yaml:"buffer" doc:"with rate: what may wait, in bytes"`
	MTU       int      `yaml:"mtu" range:"0..65535" doc:"packets of more bytes vanish"`
	Cut       bool     `yaml:"cut" doc:"nothing passes"`
	HalfOpen  bool     `yaml:"half_open" doc:"as cut, and new connections are refused"`
	Hold      bool     `yaml:"hold" doc:"everything waits until the end of it"`
	BlockUDP  bool     `yaml:"udp_blocked" doc:"UDP is lost, TCP passes"`
	Reset     bool     `yaml:"reset" doc:"what is established is ended"`
	Up        Duration `yaml:"up" doc:"flapping: it acts for so long"`
	Down      Duration `yaml:"down" doc:"flapping: and rests for so long"`

	For Span `yaml:"for" doc:"how long; to the end if it is left out"`
}

// Rule returns the fault plane's rule for the link. The lab fills in From, To, For
// and Seed: the first two are node IDs there.
func (l *Link) Rule() faults.Rule {
	d := func(d Duration) faults.Duration { return faults.Duration(d) }
	p := func(p Percent) faults.Probability { return faults.Probability(p / 100) }
	return faults.Rule{
		On: faults.Traffic(l.Plane), Drop: p(l.Drop), Duplicate: p(l.Duplicate), Reorder: p(l.Reorder), Corrupt: p(l.Corrupt),
		Delay: d(l.Delay), Jitter: d(l.Jitter), Shape: faults.Shape(l.Shape),
		Rate: faults.Bytes(l.Rate), Buffer: faults.Bytes(l.Buffer), MTU: l.MTU,
		Cut: l.Cut, HalfOpen: l.HalfOpen, Hold: l.Hold, BlockUDP: l.BlockUDP, Reset: l.Reset, Up: d(l.Up), Down: d(l.Down),
	}
}

// A Partition separates groups of nodes.
type Partition struct {
	Groups Groups    `yaml:"groups" need:"true" doc:"lists of nodes; others is all that are in no other group; a node in no group reaches all"`
	Way    Direction `yaml:"way" doc:"symmetric, asymmetric (what each group sends to those after it) or partial (only neighbours in the list); symmetric if it is left out"`
	For    Span      `yaml:"for" doc:"how long; to the end if it is left out"`
}

// A Path breaks the paths that connections between nodes have when it begins, and not
// their links: the packets of the sockets of these paths.
type Path struct {
	From NodeSet `yaml:"from" need:"true" may:"others" doc:"which nodes"`
	To   NodeSet `yaml:"to" need:"true" may:"others" doc:"nodes at the other ends"`
	Of   PathOf  `yaml:"of" doc:"messages: those of applications with each other; rma: those of applications with the other node; both if it is left out"`
	Do   PathDo  `yaml:"do" need:"true" doc:"cut: all their packets vanish, both ways; one-way: those of from do; full: those of more than 600 bytes; reset: the kernel answers them with a reset"`
	For  Span    `yaml:"for" doc:"how long; to the end if it is left out"`
}

// A PathOf is the kind of paths that a [Path] breaks.
type PathOf string

// The values of a PathOf.
const (
	PathOfMessages PathOf = "messages"
	PathOfRMA      PathOf = "rma"
)

// A PathDo is the effect of a [Path].
type PathDo string

// The values of a PathDo.
const (
	PathCut    PathDo = "cut"
	PathOneWay PathDo = "one-way"
	PathFull   PathDo = "full"
	PathReset  PathDo = "reset"
)

// A Network breaks the interface of nodes.
type Network struct {
	Node NodeSet   `yaml:"node" need:"true" doc:"which nodes"`
	Do   NetworkDo `yaml:"do" need:"true" doc:"disconnect: the cable is pulled; reject: the kernel answers every packet with port unreachable; forge: forged ICMP messages tell the kernel that packets to its peers are too long; garbage: a stranger sends random bytes to every port and socket"`
	For  Span      `yaml:"for" doc:"how long; to the end if it is left out"`
}

// A NetworkDo is the effect of a [Network].
type NetworkDo string

// The values of a NetworkDo.
const (
	Disconnect NetworkDo = "disconnect"
	Reject     NetworkDo = "reject"
	Forge      NetworkDo = "forge"
	Garbage    NetworkDo = "garbage"
)

// A Node does something to the fabricd of nodes.
type Node struct {
	ID  NodeSet `yaml:"id" need:"true" doc:"which nodes"`
	Do  NodeDo  `yaml:"do" need:"true" doc:"kill: ends it without a leave message; terminate: asks it to end; stop: freezes it; start: starts it; replace: kills it and starts another machine in its place, without its state; usurp: starts a second host in this node, with a copy of the host's state; damage: kills it, changes a bit of its state and starts it; ban: the host ends its incarnation and keeps its identity out; remove: the host ends its incarnation and forgets its identity, and another machine comes"`
	For Span    `yaml:"for" doc:"after which it is undone: started again after kill and terminate, thawed after stop, allowed again after ban, ended after usurp, its state put back after damage that it has refused; of replace and remove: how long nobody is there"`
}

// A NodeDo is the effect of a [Node].
type NodeDo string

// The values of a NodeDo.
const (
	Kill      NodeDo = "kill"
	Terminate NodeDo = "terminate"
	Stop      NodeDo = "stop"
	Start     NodeDo = "start"
	Replace   NodeDo = "replace"
	Usurp     NodeDo = "usurp"
	Damage    NodeDo = "damage"
	Ban       NodeDo = "ban"
	Remove    NodeDo = "remove"
)

// An App does something to the application of nodes.
type App struct {
	Node NodeSet `yaml:"node" need:"true" doc:"which nodes"`
	Do   AppDo   `yaml:"do" need:"true" doc:"kill, stop: as for a node; slow: it receives only so much; close: it closes all its endpoints and begins anew; flood: another one on the node takes connections, windows and room for messages until it is refused, and keeps them"`
	Rate int     `yaml:"rate" range:"0..1000000" doc:"with slow: messages a second"`
	For  Span    `yaml:"for" doc:"after which it is undone: started, thawed, as fast as before"`
}

// An AppDo is the effect of an [App].
type AppDo string

// The values of an AppDo.
const (
	AppKill  AppDo = "kill"
	AppStop  AppDo = "stop"
	AppSlow  AppDo = "slow"
	AppClose AppDo = "close"
	AppFlood AppDo = "flood"
)

// A Fault is one of package failpoint's faults inside the fabricd of nodes.
type Fault struct {
	Node        NodeSet   `yaml:"node" need:"true" doc:"which nodes"`
	Kind        FaultKind `yaml:"kind" need:"true" doc:"crash: at a step, or at once; delay: at a step; clock, disk, descriptors, slow-receiver"`
	Step        StepName  `yaml:"step" doc:"step of the protocol, as fabricd faults steps lists them"`
	Nth         int       `yaml:"nth" range:"0..1048576" doc:"which passing of the step is the first that counts; 1 if it is left out"`
	Times       int       `yaml:"times" range:"-1..1048576" doc:"how often it happens at most; once if it is left out, -1: always"`
	Probability Percent   `yaml:"probability" doc:"of each passing that counts; 100% if it is left out"`
	Within      Duration  `yaml:"within" doc:"how long it stays armed at its step"`
	Offset      Offset    `yaml:"offset" doc:"of a clock"`
	Disk        DiskMode  `yaml:"disk" doc:"of a disk: full, read-only, sync (a sync fails) or slow"`
	Delay       Duration  `yaml:"delay" doc:"of a slow disk or receiver, each time"`
	Free        int       `yaml:"free" range:"0..1048576" doc:"of descriptors: how many are left"`
	For         Span      `yaml:"for" doc:"how long; all but crash need it"`
	// Restart starts a daemon that a crash has ended; the lab does it.
	Restart Duration `yaml:"restart" doc:"of a crash: start it again so long after it has ended"`
}

// A FaultKind is the effect of a [Fault].
type FaultKind string

// The values of a FaultKind: those of package failpoint.
const (
	FaultCrash       FaultKind = "crash"
	FaultDelay       FaultKind = "delay"
	FaultClock       FaultKind = "clock"
	FaultDisk        FaultKind = "disk"
	FaultDescriptors FaultKind = "descriptors"
	FaultSlow        FaultKind = "slow-receiver"
)

// A CPU takes processor time from nodes.
type CPU struct {
	Node  NodeSet `yaml:"node" need:"true" doc:"which nodes"`
	Share Percent `yaml:"share" doc:"what is left to them of one processor"`
	Hogs  int     `yaml:"hogs" range:"0..64" doc:"busy loops that run beside them"`
	For   Span    `yaml:"for" doc:"how long; to the end if it is left out"`
}

// A Memory bounds the memory of nodes.
type Memory struct {
	Node  NodeSet `yaml:"node" need:"true" doc:"which nodes"`
	Limit Size    `yaml:"limit" need:"true" range:"1048576..1099511627776" doc:"bytes"`
	For   Span    `yaml:"for" doc:"how long; to the end if it is left out"`
}

// A Rotate changes a secret of the cluster, as fabricd keys rotate does.
type Rotate struct {
	What RotateWhat `yaml:"what" need:"true" doc:"keys: the key that seals gossip"`
}

// A RotateWhat is the subject of a [Rotate].
type RotateWhat string

// RotateKeys is the key that seals gossip. Certificates renew themselves, see
// [Cluster].
const RotateKeys RotateWhat = "keys"

// Time returns the duration as time.Duration.
func (d Duration) Time() time.Duration { return time.Duration(d) }
