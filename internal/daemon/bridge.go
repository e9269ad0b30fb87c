package daemon

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/membership"
)

// A toldEngine receives membership's events. *engine.Node is the only implementation outside tests.
type toldEngine interface {
	SetSelf(engine.Self)
	NodeUp(engine.Peer)
	NodeUpdate(engine.Peer)
	NodeLost(incarnation addr.Incarnation, reason string)
	Retain(incarnations []addr.Incarnation, reason string)
	ResetSelf(reason string)
}

// A bridge carries membership's events to the engine, and then to the node list.
// Its handle is called with one event at a time, in order.
type bridge struct {
	cluster  addr.UUID
	name     string
	term     func() uint64
	lease    func() []byte // signed, of this node's incarnation
	engine   toldEngine
	meet     func(membership.Event) // gets each event before the engine; nil: none
	nodeList *nodeList
	log      zerolog.Logger

	first *firstTable // of an incarnation that the engine does not know yet; else nil
}

// A firstTable is an incarnation of this node whose first table is arriving. When it is complete the engine
// ends all that it holds of incarnations that are not in the table.
type firstTable struct {
	self   membership.Event
	others []membership.Event // those of the table; the node list gets them behind self
}

// handle makes one event happen here. It returns from a removal only when
// every operation towards the removed incarnation has failed and the applications'
// callbacks are due: the return is the acknowledgement that membership waits
// for. The node list receives an event after the engine, so that a reader of
// a node there can connect to it, and a reader of its loss cannot. This
// node's own incarnation waits for its first table; see begin.
func (b *bridge) handle(ev membership.Event) {
	n := ev.Node
	if b.meet != nil {
		b.meet(ev)
	}
	log := b.log.With().Stringer("peer", n.Incarnation).Str("name", n.Name()).Logger()
	switch ev.Kind {
	case membership.EventSelf:
		if ev.Reason == "" {
			b.first = &firstTable{self: ev}
			b.begin()
		}
		return
	case membership.EventAdded:
		b.engine.NodeUp(peerOf(n))
		log.Debug().Str("op", "added").Strs("addresses", n.Addresses()).Msg("engine knows the node")
	case membership.EventUpdated:
		b.engine.NodeUpdate(peerOf(n))
		log.Debug().Str("op", "updated").Str("state", n.State.String()).Msg("engine knows the change")
	case membership.EventRemoved:
		began := time.Now()
		b.engine.NodeLost(n.Incarnation, string(ev.Reason))
		log.Debug().Str("op", "removed").Str("reason", string(ev.Reason)).Dur("took", time.Since(began)).Msg("engine has ended all towards the node")
	case membership.EventReset:
		b.first = nil
		b.engine.ResetSelf(resetReason(ev))
		b.log.Warn().Str("op", "reset").Str("reason", resetReason(ev)).Msg("the others removed this node; it joins again")
	case membership.EventLocal:
		b.setSelf(n)
		b.log.Warn().Str("op", "local").Stringer("incarnation", n.Incarnation).Msg("no host answers: this node serves the applications of its machine; others cannot be reached")
	case membership.EventHost:
		b.log.Debug().Str("op", "host").Str("detail", ev.Detail).Msg("host")
	}
	if b.first != nil && ev.Kind == membership.EventAdded {
		b.first.others = append(b.first.others, ev)
		b.begin()
		return
	}
	b.nodeList.apply(ev, time.Now())
}

// begin gives this node its incarnation once the incarnation's first table is complete: an application that sees
// the incarnation can connect to all nodes of the table.
func (b *bridge) begin() {
	ev, others := b.first.self, b.first.others
	if len(others) < ev.Others {
		return
	}
	b.first = nil
	incarnations := make([]addr.Incarnation, 0, len(others))
	for _, o := range others {
		incarnations = append(incarnations, o.Node.Incarnation)
	}
	b.engine.Retain(incarnations, string(membership.ReasonSilent))
	b.setSelf(ev.Node)
	b.log.Debug().Str("op", "lease").Stringer("incarnation", ev.Node.Incarnation).Msg("engine knows this node's incarnation")
	for _, e := range append([]membership.Event{ev}, others...) {
		b.nodeList.apply(e, time.Now())
	}
}

func (b *bridge) setSelf(n membership.Node) {
	b.engine.SetSelf(engine.Self{
		Self:   attach.Self{Cluster: b.cluster, Incarnation: n.Incarnation, Name: b.name},
		Labels: n.Labels,

		UUID:  n.UUID,
		Epoch: n.Epoch,
		Term:  b.term(),
		Lease: b.lease,
	})
}

func resetReason(ev membership.Event) string {
	if ev.Detail != "" {
		return ev.Detail
	}
	return string(ev.Reason)
}

func peerOf(n membership.Node) engine.Peer {
	return engine.Peer{Incarnation: n.Incarnation, UUID: n.UUID, Epoch: n.Epoch, Name: n.Name(), Labels: n.Labels, Addresses: n.Addresses(),
		Providers: n.Providers(), Until: n.Until}
}
