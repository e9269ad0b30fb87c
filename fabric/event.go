package fabric

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
)

// An EventKind is one of SCIF's node events.
type EventKind uint8

// The values of an EventKind.
const (
	NodeAdded   EventKind = 1 // SCIF_NODE_ADDED
	NodeRemoved EventKind = 2 // SCIF_NODE_REMOVED
)

// An Event reports that a node joined or was lost.
type Event struct {
	Kind       EventKind
	Node       NodeID
	Generation Generation // which incarnation of Node
	Name       string     // the node's name
	Reason     string     // of a removal: "left", "crashed", "silent", "restarted", …
}

// String returns the event as one line for logs.
func (ev Event) String() string {
	if ev.Kind == NodeAdded {
		return fmt.Sprintf("node %d.%d added", ev.Node, ev.Generation)
	}
	return fmt.Sprintf("node %d.%d removed: %s", ev.Node, ev.Generation, ev.Reason)
}

// OnEvent calls fn for every node event from now on (scif_event_register), one
// at a time and in order; the nodes that are live now are not reported. For
// one incarnation of a node, fn sees at most one NodeAdded and then at most one
// NodeRemoved. When NodeRemoved arrives, every call towards that incarnation has
// failed already.
//
// cancel ends it (scif_event_unregister): it does not wait for a call of fn that is under way or
// about to begin, and there is none after that. A slow fn delays later events and nothing else.
func (n *Node) OnEvent(fn func(Event)) (cancel func()) {
	return n.session.Watch(func(ev attach.Event) {
		fn(Event{
			Kind:       EventKind(ev.Kind),
			Node:       ev.Incarnation.Node,
			Generation: ev.Incarnation.Generation,
			Name:       ev.Name,
			Reason:     ev.Reason,
		})
	})
}
