package daemon

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/driver"
	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/membership"
)

// An engine is what membership's events do to the driver. *driver.Node is the
// only one outside tests.
type engine interface {
	SetSelf(driver.Self)
	NodeUp(driver.Peer)
	NodeUpdate(driver.Peer)
	NodeLost(life addr.Life, reason string)
	ResetSelf(reason string)
}

// A bridge carries membership's events to the engine, and then to the roster.
// Its handle is called with one event at a time, in order.
type bridge struct {
	cluster addr.UUID
	name    string
	term    func() uint64
	engine  engine
	meet    func(membership.Event) // is told before the engine; nil: nobody is
	roster  *roster
	log     zerolog.Logger
}

// handle makes one event happen here. It returns from a removal only when
// every operation towards the removed life has failed and the applications'
// callbacks are due: the return is the acknowledgement that membership waits
// for. The roster hears of an event after the engine, so that whoever reads of
// a node there can connect to it, and whoever reads of its loss cannot.
func (b *bridge) handle(ev membership.Event) {
	n := ev.Node
	if b.meet != nil {
		b.meet(ev)
	}
	log := b.log.With().Stringer("peer", n.Life).Str("name", n.Name).Logger()
	switch ev.Kind {
	case membership.EventSelf:
		b.engine.SetSelf(driver.Self{
			Self:  ipc.Self{Cluster: b.cluster, Life: n.Life, Name: b.name},
			UUID:  n.UUID,
			Epoch: n.Epoch,
			Term:  b.term(),
		})
		b.log.Debug().Str("op", "lease").Stringer("life", n.Life).Msg("engine knows this node's life")
	case membership.EventAdded:
		b.engine.NodeUp(peerOf(n))
		log.Debug().Str("op", "added").Strs("addresses", n.Addresses).Msg("engine knows the node")
	case membership.EventUpdated:
		b.engine.NodeUpdate(peerOf(n))
		log.Debug().Str("op", "updated").Str("state", n.State.String()).Msg("engine knows the change")
	case membership.EventRemoved:
		began := time.Now()
		b.engine.NodeLost(n.Life, string(ev.Reason))
		log.Debug().Str("op", "removed").Str("reason", string(ev.Reason)).Dur("took", time.Since(began)).Msg("engine has ended all towards the node")
	case membership.EventReset:
		b.engine.ResetSelf(resetReason(ev))
		b.log.Warn().Str("op", "reset").Str("reason", resetReason(ev)).Msg("the others removed this node; it joins again")
	case membership.EventHost:
		b.log.Debug().Str("op", "host").Str("detail", ev.Detail).Msg("host")
	}
	b.roster.apply(ev, time.Now())
}

func resetReason(ev membership.Event) string {
	if ev.Detail != "" {
		return ev.Detail
	}
	return string(ev.Reason)
}

func peerOf(n membership.Node) driver.Peer {
	return driver.Peer{Life: n.Life, UUID: n.UUID, Epoch: n.Epoch, Name: n.Name, Addresses: n.Addresses,
		Providers: n.Providers}
}
