// Package history is the log of one run: the faults of a cluster, the observations of
// its nodes and applications, and their actions. The same log comes out of a
// simulation, of processes, of network namespaces and of containers, so that one
// checker ([github.com/fabricd/fabricd/internal/lab/check]) judges them all.
//
// A log is a sequence of [Record]s. As text it is one JSON object a line:
//
//	{"at":3200145000,"src":"app:2:1","seq":41,"event":{"what":"removed", …}}
//
// with exactly one body, whose key is its [Kind]. Every source writes a file of
// its own ([Writer]); [Read] reads one back and [Merge] makes one history of
// them. [Decode] is strict: an unknown key, a number out of range or a second
// body is an error that names the line.
//
// # Time
//
// At counts nanoseconds from the zero of the run. All sources of one run use one
// clock: virtual time in a simulation, CLOCK_MONOTONIC minus the run's zero elsewhere
// (every process of a lab runs on one machine). The time of a record is when the
// thing happened as its writer saw it. A writer records an action before it starts
// ([Call], [Offered], [RMA]), and an event after it happened. Within one source At
// never goes back.
//
// # The words
//
// A node is named by its index in the scenario, from 0, the host's. It is the
// machine, the container or the state directory, and stays when the process
// restarts. An incarnation ([addr.Incarnation]) is one generation of a node ID; a node that
// comes back has another one. A connection is named by a nonce that its client
// has drawn and sent, so both ends write the same; an end is (connection,
// side).
package history

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Version is the version of the format, in [Begin].
const Version = 1

// A Record is one line of a log: an observation of one source at one time.
type Record struct {
	At     int64  // ns since the zero of the run; not negative
	Source Source // the writer
	Seq    uint64 // counts the records of Source from 1, without a gap
	Body   Body   // never nil
}

// A Body is the content of a record: a pointer to one of the types of this package,
// one for each [Kind]. Bodies are shared and never changed. Their tags list which values
// are allowed: see the function check.
type Body any

// A Kind names the type of a body: its key in the JSON form, as "fault_end".
type Kind string

// A Begin opens a run and describes it, so that a history alone suffices to repeat
// it. The lab writes it first.
type Begin struct {
	Version   int    `json:"version"`                              // [Version]
	Scenario  string `json:"scenario"`                             // its name
	Seed      uint64 `json:"seed"`                                 // that everything random was drawn from
	Lab       string `json:"lab" of:"sim local netns compose"`     // sim, local, netns, compose
	Detection string `json:"detection" of:"fast normal calm"`      // fast, normal, calm
	LostPair  string `json:"lost_pair,omitempty" of:"reset evict"` // reset, evict; empty: reset
	Paths     string `json:"paths,omitempty" of:"lazy off"`        // [PathsLazy], [PathsOff]; empty in a simulation
	Nodes     int    `json:"nodes" least:"1"`                      // nodes, 1…4096
	// Names are the names that the scenario gives the first of the nodes.
	Names    []string `json:"names,omitempty"`
	Duration int64    `json:"duration"`          // of the scenario, ns
	Build    string   `json:"build,omitempty"`   // version of fabricd
	Started  string   `json:"started,omitempty"` // wall time, RFC 3339; empty in a simulation
	Command  string   `json:"command,omitempty"` // that repeats the run
}

// NodeLabel names a node for people: "3", or "1 (db)" if the scenario gives it a name.
func (b *Begin) NodeLabel(node int) string {
	if node >= len(b.Names) {
		return strconv.Itoa(node)
	}
	return fmt.Sprintf("%d (%s)", node, b.Names[node])
}

// NodeLabels lists nodes for people, the first of them if there are many.
func (b *Begin) NodeLabels(all []int) string {
	const most = 12
	words := make([]string, min(len(all), most))
	for i := range words {
		words[i] = b.NodeLabel(all[i])
	}
	if len(all) > most {
		words = append(words, fmt.Sprintf("… (%d)", len(all)))
	}
	return strings.Join(words, ",")
}

// The values of [Begin].Paths: how the daemons of a real lab ran.
const (
	PathsLazy = "lazy" // without --enable-faults: connections that are used get paths
	PathsOff  = "off"  // with --enable-faults: no connection has a path
)

// A Timeline records that the cluster is up and the scenario's own clock begins: the times of
// its steps count from here.
type Timeline struct{}

// An End closes a run. Without it the runner itself was ended.
type End struct {
	// Complete: the whole timeline was run and all sources were collected.
	Complete bool   `json:"complete"`
	Why      string `json:"why,omitempty"` // if not complete
}

// A Way is the directed links from each node of From to each of To, those of a
// node to itself left out. Both are sorted.
type Way struct {
	From []int `json:"from"`
	To   []int `json:"to"`
}

// A Harm is the worst that a fault may lawfully do to the nodes that it touches.
type Harm string

const (
	// HarmNone: it must stay invisible but for speed: no reset, no removal.
	HarmNone Harm = "none"
	// HarmReset: connections that it touches may be reset, no node is removed.
	HarmReset Harm = "reset"
	// HarmRemove: incarnations that it touches may be removed.
	HarmRemove Harm = "remove"
)

// A Fault records that the lab has put a fault in place. At is when it has begun to
// work for certain; an instant fault (a kill) has a [FaultEnd] too.
type Fault struct {
	ID    int    `json:"id" least:"1"`    // counts the faults of the run from 1, in the order of the schedule
	Step  int    `json:"step"`            // index of the timeline's step, from 0
	Round int    `json:"round,omitempty"` // of a repeated step, from 0
	What  string `json:"what"`            // the step's key and the verb: "node kill", "link drop 20%"
	// Since is when the lab began to put it in place, ns: the effect lies
	// between Since and At. Zero: at At.
	Since int64 `json:"since,omitempty"`
	// Until is when the schedule ends it, ns; 0: it is instant or lasts until
	// the end.
	Until int64 `json:"until,omitempty"`
	Nodes []int `json:"nodes,omitempty"` // nodes that it touches as a whole
	Ways  []Way `json:"ways,omitempty"`  // directed links that it touches, if it touches no whole node
	Apps  []int `json:"apps,omitempty"`  // nodes whose applications it touches, and nothing else
	Harm  Harm  `json:"harm"`
	// Cut: nothing passes where it touches, and no node answers there.
	Cut bool `json:"cut,omitempty"`
}

// A FaultEnd records that a fault was taken back, or that an instant one was done,
// and proves that it was there.
type FaultEnd struct {
	ID int `json:"id" least:"1"` // of the [Fault]
	// Fired counts its effects: packets dropped, signals delivered, writes refused. 0
	// means that it never had any.
	Fired uint64 `json:"fired"`
	Proof string `json:"proof,omitempty"` // the count as readable text: "dropped 418 packets", "state T"
	Err   string `json:"err,omitempty"`   // why it could not be put in place or taken back
}

// A Did is a change of a process.
type Did string

const (
	DidStart     Did = "start"     // it runs; a daemon: it serves applications
	DidKill      Did = "kill"      // by the lab, without a leave message
	DidTerminate Did = "terminate" // by the lab: asked to end in order
	DidStop      Did = "stop"      // by the lab: frozen
	DidContinue  Did = "continue"  // by the lab: thawed
	DidExit      Did = "exit"      // it has ended, for any reason, given by Code and Detail
	DidCrash     Did = "crash"     // it ended by itself at a protocol step where the lab had armed a crash
)

// A Process records an action on a process, or a change of it.
type Process struct {
	Target Source `json:"target"`                       // the daemon or the application
	Did    Did    `json:"did"`                          // see [Did]
	Code   int    `json:"code,omitempty" least:"-1000"` // of an exit: the status; negative: minus the signal
	Detail string `json:"detail,omitempty"`             // for people
}

// An EventKind is the subject of an [Event].
type EventKind string

const (
	EventAdded   EventKind = "added"   // Subject's incarnation began
	EventRemoved EventKind = "removed" // Subject's incarnation ended
	EventSelf    EventKind = "self"    // Subject is the source's own new incarnation
	EventReset   EventKind = "reset"   // Subject, the source's own incarnation, was ended by the others
	EventHost    EventKind = "host"    // the host became reachable or lost; Reason is which
)

// An Event is a node event as a daemon or an application received it: one record for
// each call of its handler, written when the handler is called.
//
// The first event of a source is an [EventSelf]; the members that it knows already
// then are a [View].
type Event struct {
	What     EventKind        `json:"what"`
	Observer addr.Incarnation `json:"observer"`         // the incarnation that was notified; of a self: the same as Subject
	Subject  addr.Incarnation `json:"subject"`          // zero for a host event
	UUID     addr.UUID        `json:"uuid,omitzero"`    // the subject's, if the writer knows it
	Reason   string           `json:"reason,omitempty"` // left, crashed, silent, restarted, partitioned; of a host event: reachable, lost…
}

// A Member is one incarnation of a [View].
type Member struct {
	Incarnation addr.Incarnation `json:"life"`
	UUID        addr.UUID        `json:"uuid,omitzero"`
}

// A View is the set of nodes that a source takes for live (scif_get_nodeIDs), its own
// incarnation included. It is complete; it replaces the knowledge from earlier events.
type View struct {
	Observer addr.Incarnation `json:"observer"`
	Live     []Member         `json:"live"`
}

// A Side is the end of a connection.
type Side string

const (
	Client Side = "client" // that connected
	Server Side = "server" // that accepted
)

// Other returns the other end.
func (s Side) Other() Side {
	if s == Client {
		return Server
	}
	return Client
}

// A ConnEnd is one end of a connection, the subject of most records.
type ConnEnd struct {
	Conn uint64 `json:"conn" least:"1"` // the nonce; not 0
	Side Side   `json:"side"`
}

// Other returns the other end of the connection.
func (e ConnEnd) Other() ConnEnd { return ConnEnd{e.Conn, e.Side.Other()} }

// A Call records a call that is under way. Calls that block are written when
// they begin; of all others it is enough to write those that have not returned
// after 100 ms, and those that have not returned when the source ends. A call
// without a [Return] is one that hangs, unless its process was ended.
type Call struct {
	ID       uint64           `json:"id" least:"1"`       // of the call, unique in the source; not 0
	Name     string           `json:"name" least:"1"`     // SCIF's, without its prefix: "send", "fence_wait", "connect"
	Began    int64            `json:"began"`              // ns
	Deadline int64            `json:"deadline,omitempty"` // ns, on the run's clock; 0: none
	Conn     uint64           `json:"conn,omitempty"`     // nonce; 0: not about a connection, or not yet known
	Side     Side             `json:"side,omitempty"`     // given with Conn
	Peer     addr.Incarnation `json:"peer,omitzero"`      // the incarnation it is about; zero: none, or not known
	// To is the node that a connect is towards, which may have no incarnation; nil: not a connect,
	// or not known.
	To *int `json:"to,omitempty"`
	// Idle: the call has nothing to do until the peer acts or is lost (a parked
	// recv, accept, poll). It may last as long as its peer lives.
	Idle bool `json:"idle,omitempty"`
}

// A Return records how a call ended. It stands alone: the [Call] may be missing.
type Return struct {
	Call
	// Status is empty for success, else the errno's name: "ECONNRESET".
	Status string `json:"status,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"` // sent or received, also before a failure
}

// An Opened records that one end of a connection is connected. Both ends write
// it; a server after it has read the nonce.
type Opened struct {
	ConnEnd
	Local      addr.Incarnation `json:"local"`
	Remote     addr.Incarnation `json:"remote"`
	LocalPort  uint16           `json:"local_port,omitempty"`
	RemotePort uint16           `json:"remote_port,omitempty"`
}

// A Closed records that one end of a connection has ended.
type Closed struct {
	ConnEnd
	// How is "close" for an end that closed in order after everything that it
	// sent was accepted, "eof" for one that read the peer's orderly end, else
	// the errno's name that its calls fail with.
	How string `json:"how" least:"1"`
}

// The values of [Closed].How that are no errno.
const (
	HowClose = "close"
	HowEOF   = "eof"
)

// A Range is bytes of one direction of a connection: [From, To), counted from
// its first byte after the nonce.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// An Offered records the bytes that an end is about to send. It is written before the
// call, and may be ahead of it by many messages.
type Offered struct {
	ConnEnd
	Range
}

// A Sent records the bytes that send has accepted.
type Sent struct {
	ConnEnd
	Range
}

// A Received records the bytes that an end has received from the other. The byte at a
// position is a function of the nonce, the direction and the position, so the
// receiver compares alone.
type Received struct {
	ConnEnd // the receiving end
	Range
	Bad *int64 `json:"bad,omitempty"` // position of the first byte that is not the right one; nil: all are
}

// An RMA records that an end is about to begin an operation. Operations of one
// end are numbered from 1 without a gap.
type RMA struct {
	ConnEnd        // the initiator
	Op      uint64 `json:"op" least:"1"`
	Name    string `json:"name" least:"1"` // SCIF's: "writeto", "vreadfrom", …
	Window  uint64 `json:"window"`         // whose range it is about: [Window].ID of the peer's
	Offset  int64  `json:"offset"`         // in the window
	Len     int64  `json:"len" least:"1"`
	Sync    bool   `json:"sync,omitempty"`
}

// An RMADone records how the call that began an operation ended. Success of an
// operation without Sync only means that it was begun.
type RMADone struct {
	ConnEnd
	Op     uint64 `json:"op" least:"1"`
	Status string `json:"status,omitempty"` // empty: success
	// Bad is, of a read that completed, the position in the destination of the first
	// word that differs from the window's content; nil: none does.
	Bad *int64 `json:"bad,omitempty"`
}

// A Fenced records that a fence wait ended: with success, every operation of that end
// up to Upto has completed.
type Fenced struct {
	ConnEnd        // whose operations
	Upto    uint64 `json:"upto"`
	Status  string `json:"status,omitempty"`
}

// A Checked records the target's view of its windows when the initiator, after a
// successful fence wait, had notified it that everything up to Upto is there.
type Checked struct {
	ConnEnd         // the target
	Upto    uint64  `json:"upto"`              // as notified
	Missing *uint64 `json:"missing,omitempty"` // lowest operation up to Upto that is not wholly visible; nil: none
}

// A Signal records that an end is about to ask for a signal: Value is the number
// of the last operation that it covers, stored at the peer.
type Signal struct {
	ConnEnd        // the initiator
	Value   uint64 `json:"value" least:"1"`
}

// A SignalSeen records that an end found a new value in its signal word, and the
// operations that were visible then.
type SignalSeen struct {
	ConnEnd         // the target
	Value   uint64  `json:"value"`
	Missing *uint64 `json:"missing,omitempty"` // lowest operation up to Value that is not wholly visible; nil: none
}

// A Window records that an end has registered memory, filled with the window's
// own tag, with guard pages before and behind.
type Window struct {
	ConnEnd                  // the owner
	ID      uint64           `json:"id" least:"1"` // unique in the run; not 0
	Owner   addr.Incarnation `json:"owner"`
	Offset  int64            `json:"offset"`
	Len     int64            `json:"len" least:"1"`
}

// A WindowGone records that a window was unregistered, or that its endpoint is
// closed; from here on nothing may write it.
type WindowGone struct {
	ID uint64 `json:"id" least:"1"`
}

// A WindowWriter is a writer of words of a window, by the tags in them.
type WindowWriter struct {
	Conn        uint64           `json:"conn"`  // nonce
	Incarnation addr.Incarnation `json:"life"`  // the initiator's
	First       uint64           `json:"first"` // lowest operation number found
	Last        uint64           `json:"last"`  // highest operation number found
	Words       int64            `json:"words"`
}

// A Scan records the content that an end found in a window, word by word. Scans
// follow every fault, and the end of a connection (once when it ended, and once more
// before the source ends).
type Scan struct {
	ID      uint64         `json:"id" least:"1"`      // of the window
	Words   int64          `json:"words"`             // 8-byte words looked at
	Writers []WindowWriter `json:"writers,omitempty"` // beside the window's own fill
	Unknown int64          `json:"unknown,omitempty"` // words with no tag of any writer
	Guard   int64          `json:"guard,omitempty"`   // bytes of the guard pages that changed
	// Misplaced counts words with a proper tag where their operation did not
	// write.
	Misplaced int64 `json:"misplaced,omitempty"`
	// Sum is a hash of all words: two scans of a window that no peer may write any
	// more have the same.
	Sum uint64 `json:"sum,omitempty"`
}

// A Phase is the time at which resources were counted.
type Phase string

const (
	PhaseBaseline Phase = "baseline" // the cluster is up, without connections yet
	// PhaseEnd: the workload has ended and settled, the cluster is still whole. After
	// the first record of this phase the lab takes the cluster down.
	PhaseEnd Phase = "end"
)

// Resources records the resources of a process. Uncounted ones are absent.
type Resources struct {
	Target Source           `json:"target"`
	Phase  Phase            `json:"phase"`
	Count  map[string]int64 `json:"count"` // see [ResourceNames]
	// Used is the processor time since its start, up to UsedAt, both in nanoseconds;
	// 0: unknown.
	Used   int64 `json:"used,omitzero"`
	UsedAt int64 `json:"used_at,omitzero"`
}

// ResourceNames are the keys of [Resources].Count. Only rss is in bytes.
var ResourceNames = []string{
	"fds", "goroutines", "memfds", "maps", "rss",
	"ports", "endpoints", "conns", "windows", "links",
}

// Paths records how a daemon's connections to other nodes communicate. It is written when it has
// changed; a path that comes and goes between two looks is not seen.
type Paths struct {
	Target Source `json:"target"`
	Conns  int    `json:"conns"` // to other nodes
	Paths  int    `json:"paths"` // of these, that have gone over to a path
	New    int    `json:"new"`   // of these, that were not seen before
}

// A Logged is a line of a daemon's log that no run may have: a panic, a
// detected data race, a broken invariant.
type Logged struct {
	Target Source `json:"target"`
	Line   string `json:"line"`
}

// A Stall records that a real lab itself stood still, for want of a processor: its
// own due work was done so much later.
type Stall struct {
	For int64 `json:"for" least:"1"` // ns
}

// A Note is for people only.
type Note struct {
	Text string `json:"text"`
}
