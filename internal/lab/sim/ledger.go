package sim

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A ledger holds the events that membership of one process has reported to its node
// since it has its incarnation. It detects forbidden ones: an incarnation twice, an end without a
// beginning, an older incarnation after a newer one.
type ledger struct {
	self addr.Incarnation
	in   map[addr.NodeID]addr.Generation // the live nodes
	out  map[addr.NodeID]addr.Generation // the newest incarnation of each ID that is over
}

// check takes an event and checks it against those before it.
func (l *ledger) check(a *agent, e verdict.Event) {
	x, incarnation := &a.w.watch, e.Node.Incarnation
	if e.Kind != verdict.EventUpdated && e.Kind != verdict.EventHost {
		x.events++
	}
	bad := func(why string) { x.at(a.p.source(), "%s: %+v", why, e) }
	switch e.Kind {
	case verdict.EventSelf:
		if l.self != (addr.Incarnation{}) {
			bad("a second incarnation without a reset")
		}
		if incarnation.Node != addr.Host && x.owner[incarnation] != (verdict.Start{UUID: a.self.uuid, Epoch: a.self.epoch}) {
			bad("the incarnation of another start")
		}
		*l = ledger{self: incarnation, in: make(map[addr.NodeID]addr.Generation), out: make(map[addr.NodeID]addr.Generation)}
	case verdict.EventReset:
		if l.self != incarnation || incarnation.Generation == 0 {
			bad("the reset of an incarnation that it does not have")
		}
		l.self = addr.Incarnation{}
	case verdict.EventAdded:
		l.added(incarnation, bad)
	case verdict.EventRemoved:
		if l.in[incarnation.Node] != incarnation.Generation {
			bad("the end of an incarnation that was not there")
		}
		delete(l.in, incarnation.Node)
		if l.out != nil {
			l.out[incarnation.Node] = max(l.out[incarnation.Node], incarnation.Generation)
		}
	case verdict.EventUpdated:
		if l.in[incarnation.Node] != incarnation.Generation {
			bad("news of an incarnation that is not there")
		}
	}
}

func (l *ledger) added(incarnation addr.Incarnation, bad func(string)) {
	switch {
	case l.self == (addr.Incarnation{}):
		bad("another incarnation before it has one itself")
		return
	case l.in[incarnation.Node] != 0:
		bad("an incarnation while another one of this ID is there")
	case incarnation.Generation <= l.out[incarnation.Node]:
		bad("an incarnation after its end")
	case incarnation == l.self:
		bad("its own incarnation as another's")
	}
	l.in[incarnation.Node] = incarnation.Generation
}
