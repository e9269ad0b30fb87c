package daemon

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/membership"
)

// NodeInfo is one incarnation of a node, as `fabricd nodes --json` shows it.
type NodeInfo struct {
	ID         addr.NodeID     `json:"id"`
	Generation addr.Generation `json:"generation"`
	Name       string          `json:"name"`
	State      string          `json:"state"` // alive, suspect, leaving or removed
	Addresses  []string        `json:"addresses"`
	Since      time.Time       `json:"since"` // of the state removed; else of the incarnation
}

// Nodes is the output of `fabricd nodes --json`.
type Nodes struct {
	Self    addr.NodeID `json:"self"` // addr.NoNode while this node has no lease
	Cluster string      `json:"cluster"`
	Nodes   []NodeInfo  `json:"nodes"`
}

// Kinds of a NodeEvent.
const (
	EventCurrent = "current" // the node was there when the stream began
	EventAdded   = "added"
	EventRemoved = "removed"
	EventUpdated = "updated"
	EventSelf    = "self"  // this node has a (new) incarnation
	EventLocal   = "local" // this node serves its machine alone, in its last incarnation: no host answers
	EventReset   = "reset" // this node's incarnation was ended by the others
	EventHost    = "host"  // the host became reachable or lost
	EventLagging = "lagging"
)

// A NodeEvent is one line of `fabricd events --json`.
type NodeEvent struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	Node   *NodeInfo `json:"node,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Detail string    `json:"detail,omitempty"`
	// Peer is the incarnation that an event of a link, a path or a connection is of.
	Peer string `json:"peer,omitempty"`
	// Count is how often it has happened up to Time, if not once.
	Count uint64 `json:"count,omitempty"`
}

const (
	// removedFor is how long a removed incarnation stays in the list, unless its ID
	// comes back: as long as its ID is in quarantine.
	removedFor = 10 * time.Minute
	// subscriberQueue bounds the events that wait for one slow reader, which is cut off when it is
	// full. It holds the join of a hundred nodes twice.
	subscriberQueue = 256
)

// A node list is the last state of all nodes that membership has reported. It follows the events; it
// decides nothing.
type nodeList struct {
	mu      sync.Mutex // guards the fields below
	cluster addr.UUID
	self    addr.Incarnation // Generation 0 without a lease
	local   bool             // self is the last incarnation, shown to this machine alone: no host has answered
	sent    bool             // the host has sent the node list, since this node started
	nodes   map[addr.NodeID]membership.Node
	subs    map[*subscription]struct{}
	closed  bool

	removals map[string]uint64 // incarnations of other nodes that have ended, by reason

	record *flight.Recorder // gets every event; nil: none
}

// A subscription is one reader of events.
type subscription struct {
	// current are the nodes at the moment of the subscription.
	current []NodeEvent
	// events has all that happened since. It is closed when the reader was too
	// slow or the node list was closed.
	events chan NodeEvent
	lagged bool // written before events is closed, read after
}

func newNodeList() *nodeList {
	return &nodeList{
		nodes: map[addr.NodeID]membership.Node{},
		subs:  map[*subscription]struct{}{},

		removals: map[string]uint64{},
	}
}

// setCluster sets the cluster's identity, which a node learns when it joins.
func (r *nodeList) setCluster(cluster addr.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cluster = cluster
}

// apply records ev, which happened at now, and notifies the subscribers.
func (r *nodeList) apply(ev membership.Event, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, changed := ev.Node, false
	switch ev.Kind {
	case membership.EventSelf, membership.EventLocal:
		if r.self.Generation != 0 && r.self != n.Incarnation {
			delete(r.nodes, r.self.Node)
		}
		n.State = membership.Alive
		r.self, r.local = n.Incarnation, ev.Kind == membership.EventLocal
		r.nodes[n.Incarnation.Node] = n
	case membership.EventReset:
		// The next incarnation's first table adds the living nodes; removed ones stay.
		maps.DeleteFunc(r.nodes, func(_ addr.NodeID, n membership.Node) bool { return n.State != membership.Removed })
		r.self.Generation, r.local = 0, false
	case membership.EventHost:
		r.sent = r.sent || ev.Detail == membership.HostReachable // it comes behind the host's table
	case membership.EventAdded, membership.EventUpdated:
		changed = r.nodes[n.Incarnation.Node].State != n.State
		r.nodes[n.Incarnation.Node] = n
	case membership.EventRemoved:
		r.removals[removalReason(ev.Reason)]++
		known, ok := r.nodes[n.Incarnation.Node]
		if ok && known.Incarnation == n.Incarnation {
			n = known // a verdict may know less than we do
		}
		n.State, n.Since = membership.Removed, now
		if !ok || known.Incarnation.Generation <= n.Incarnation.Generation {
			r.nodes[n.Incarnation.Node] = n
		}
	}
	e := eventOf(ev, n, now)
	r.publish(e)
	switch {
	case ev.Kind != membership.EventUpdated:
		r.keep(e, colons(e.Reason, e.Detail))
	case changed: // members send the other changes, of themselves, as often as they like
		r.keep(e, n.State.String())
	}
}

// keep records an event.
func (r *nodeList) keep(e NodeEvent, detail string) {
	var incarnation addr.Incarnation
	name := ""
	if e.Node != nil {
		incarnation, name = addr.Incarnation{Node: e.Node.ID, Generation: e.Node.Generation}, e.Node.Name
	}
	r.record.Note(flight.Cluster, e.Event, incarnation, name, detail)
}

// removalReasons are those that incarnations are counted by; the last is of all others.
var removalReasons = []string{string(membership.ReasonLeft), string(membership.ReasonCrashed), string(membership.ReasonSilent),
	string(membership.ReasonRestarted), string(membership.ReasonPartitioned), "other"}

func removalReason(r membership.Reason) string {
	if slices.Contains(removalReasons, string(r)) {
		return string(r)
	}
	return removalReasons[len(removalReasons)-1]
}

// ended returns how many incarnations of other nodes have ended, by reason.
func (r *nodeList) ended() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]uint64, len(removalReasons))
	for _, reason := range removalReasons {
		all[reason] = r.removals[reason]
	}
	return all
}

// publish hands e to every subscriber; one that cannot take it is cut off.
func (r *nodeList) publish(e NodeEvent) {
	for sub := range r.subs {
		select {
		case sub.events <- e:
		default:
			sub.lagged = true
			r.drop(sub)
		}
	}
}

// fill returns how full the fullest queue of a subscriber is.
func (r *nodeList) fill() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	longest := 0
	for sub := range r.subs {
		longest = max(longest, len(sub.events))
	}
	return float64(longest) / subscriberQueue
}

// drop ends sub. The caller holds r.mu.
func (r *nodeList) drop(sub *subscription) {
	if _, ok := r.subs[sub]; ok {
		delete(r.subs, sub)
		close(sub.events)
	}
}

// subscribe returns the nodes that are there now, and all events from now on.
func (r *nodeList) subscribe(now time.Time) *subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	sub := &subscription{events: make(chan NodeEvent, subscriberQueue)}
	for _, n := range r.list(now) {
		if n.State != membership.Removed.String() {
			sub.current = append(sub.current, NodeEvent{Time: now, Event: EventCurrent, Node: &n})
		}
	}
	if r.closed {
		close(sub.events)
		return sub
	}
	r.subs[sub] = struct{}{}
	return sub
}

// unsubscribe ends sub; a second time does nothing.
func (r *nodeList) unsubscribe(sub *subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(sub)
}

// close ends every subscription, now and later.
func (r *nodeList) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for sub := range r.subs {
		r.drop(sub)
	}
}

// snapshot returns the nodes as of now, by ID.
func (r *nodeList) snapshot(now time.Time) Nodes {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := Nodes{Self: addr.NoNode, Cluster: r.cluster.String(), Nodes: r.list(now)}
	if r.self.Generation != 0 {
		all.Self = r.self.Node
	}
	return all
}

// own returns this node's own incarnation, and whether that is its last one, which it
// shows to its own machine alone; the generation is 0 while it has none.
func (r *nodeList) own() (self addr.Incarnation, local bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self, r.local
}

// incarnation returns the newest incarnation of the node with this UUID that
// this node knows.
func (r *nodeList) incarnation(node addr.UUID) (found membership.Node, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		if n.UUID == node && (!ok || n.Since.After(found.Since)) {
			found, ok = n, true
		}
	}
	return found, ok
}

// complete reports whether this node has an incarnation and knows the others.
func (r *nodeList) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self.Generation != 0 && r.sent
}

// list returns the nodes by ID and forgets those removed long ago. The caller holds r.mu.
func (r *nodeList) list(now time.Time) []NodeInfo {
	all := make([]NodeInfo, 0, len(r.nodes))
	for id, n := range r.nodes {
		if n.State == membership.Removed && now.Sub(n.Since) > removedFor {
			delete(r.nodes, id)
			continue
		}
		all = append(all, infoOf(n))
	}
	slices.SortFunc(all, func(a, b NodeInfo) int { return int(a.ID) - int(b.ID) })
	return all
}

func infoOf(n membership.Node) NodeInfo {
	addresses := slices.Clone(n.Addresses())
	if addresses == nil {
		addresses = []string{} // an empty list in JSON, not null
	}
	return NodeInfo{n.Incarnation.Node, n.Incarnation.Generation, n.Name(), n.State.String(), addresses, n.Since.UTC()}
}

// eventOf returns the line for ev, n being the known state of its node.
func eventOf(ev membership.Event, n membership.Node, now time.Time) NodeEvent {
	names := map[membership.EventKind]string{
		membership.EventAdded:   EventAdded,
		membership.EventRemoved: EventRemoved,
		membership.EventSelf:    EventSelf,
		membership.EventReset:   EventReset,
		membership.EventHost:    EventHost,
		membership.EventUpdated: EventUpdated,
		membership.EventLocal:   EventLocal,
	}
	e := NodeEvent{Time: now, Event: names[ev.Kind], Reason: string(ev.Reason), Detail: ev.Detail}
	if ev.Kind != membership.EventHost {
		e.Node = new(infoOf(n))
	}
	return e
}
