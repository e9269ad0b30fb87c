package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Node describes one incarnation of one node. Its slices are shared by all holders of
// the value and are never changed.
type Node struct {
	Incarnation addr.Incarnation
	Identity    // without claims while the host knows no more than its lease, and of an end
	State       State
	Labels      []string  // that the host has given it; words that rules name
	Until       time.Time // end of its certificate, wall clock; zero: not known
	Since       time.Time
}

// A State is a node's view of whether an incarnation goes on.
type State uint8

const (
	Alive   State = iota + 1
	Suspect       // gossip or silence; nothing is decided
	Leaving       // announced that it leaves
	Removed       // decided, for good
)

// String returns the state's word in `fabricd nodes --json`.
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Suspect:
		return "suspect"
	case Leaving:
		return "leaving"
	case Removed:
		return "removed"
	}
	return "unknown"
}

// A Reason is why an incarnation was removed.
type Reason string

const (
	ReasonLeft        Reason = "left"        // it announced it
	ReasonCrashed     Reason = "crashed"     // its process ended: a lifeline broke and could not be redialed
	ReasonSilent      Reason = "silent"      // no sign of life on any path
	ReasonRestarted   Reason = "restarted"   // the same identity is back in a newer incarnation
	ReasonPartitioned Reason = "partitioned" // this node itself was removed by the others
	ReasonExpelled    Reason = "expelled"    // an operator removed it
	ReasonBanned      Reason = "banned"      // an operator banned it
)

// An EventKind is the kind of change that an Event reports.
type EventKind uint8

const (
	EventAdded   EventKind = iota + 1 // Node's incarnation began
	EventRemoved                      // Node's incarnation ended
	EventSelf                         // this node has a (new) incarnation: Node is its own
	EventReset                        // this node's own incarnation was ended by the others; an EventSelf follows
	EventHost                         // the host became reachable or lost; Detail is which
	EventUpdated                      // Node's addresses or state changed
	EventLocal                        // no host has answered since this start: Node is this node in its last incarnation, for its own machine alone; an EventSelf or EventReset follows
)

// The Details of an EventHost. A join that waits or was refused for now has
// HostLost with the reason after a colon: "lost: …".
const (
	HostReachable = "reachable"
	HostLost      = "lost"
)

// An Event is a change of the cluster as this node sees it. Events come in
// order, one at a time; a handler that returns acknowledges a removal.
type Event struct {
	Kind   EventKind
	Node   Node
	Reason Reason // of an EventSelf: the incarnation is over already, an EventReset comes next
	Detail string
	Others int // of an EventSelf: so many EventAdded, of the incarnation's first table, come next
}

// Evidence is an observation of a data link, or of gossip, about an incarnation.
type Evidence uint8

const (
	LinkAlive    Evidence = iota + 1 // the link answered
	LinkSilent                       // nothing came for the link's bound
	LinkReset                        // a stateless reset: the process lost its state
	LinkFenced                       // the peer's answer: our incarnation, or the incarnation we asked for, is over
	LinkRefused                      // it ended, or could not be dialed, and a redial was refused or failed
	DeadInGossip                     // dead in gossip; made from a [Gossip] input, never by a link
	EndAnnounced                     // the sender, while alone, announced its end, and the table has it alive; never by a link
)

// A GossipState is gossip's opinion of an incarnation.
type GossipState uint8

const (
	GossipUnknown GossipState = iota // nothing was reported, or it was discarded
	GossipAlive                      // gossip counts it among its members
	GossipSuspect                    // gossip suspects it
	GossipDead                       // gossip has given it up
)
