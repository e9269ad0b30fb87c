package sim

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A ledger holds the events that membership of one process has reported to its node
// since it has its life. It detects forbidden ones: a life twice, an end without a
// beginning, an older life after a newer one.
type ledger struct {
	self addr.Life
	in   map[addr.NodeID]addr.Generation // the live nodes
	out  map[addr.NodeID]addr.Generation // the newest life of each ID that is over
}

// check takes an event and checks it against those before it.
func (l *ledger) check(a *agent, e verdict.Event) {
	x, life := &a.w.watch, e.Node.Life
	if e.Kind != verdict.EventUpdated && e.Kind != verdict.EventHost {
		x.events++
	}
	bad := func(why string) { x.at(a.p.source(), "%s: %+v", why, e) }
	switch e.Kind {
	case verdict.EventSelf:
		if l.self != (addr.Life{}) {
			bad("a second life without a reset")
		}
		if life.Node != addr.Host && x.owner[life] != (lifeKey{a.self.uuid, a.self.epoch}) {
			bad("somebody else's life")
		}
		*l = ledger{self: life, in: make(map[addr.NodeID]addr.Generation), out: make(map[addr.NodeID]addr.Generation)}
	case verdict.EventReset:
		if l.self != life || life.Generation == 0 {
			bad("the reset of a life that it does not have")
		}
		l.self = addr.Life{}
	case verdict.EventAdded:
		l.added(life, bad)
	case verdict.EventRemoved:
		if l.in[life.Node] != life.Generation {
			bad("the end of a life that was not there")
		}
		delete(l.in, life.Node)
		if l.out != nil {
			l.out[life.Node] = max(l.out[life.Node], life.Generation)
		}
	case verdict.EventUpdated:
		if l.in[life.Node] != life.Generation {
			bad("news of a life that is not there")
		}
	}
}

func (l *ledger) added(life addr.Life, bad func(string)) {
	switch {
	case l.self == (addr.Life{}):
		bad("another life before it has one itself")
		return
	case l.in[life.Node] != 0:
		bad("a life while another one of this ID is there")
	case life.Generation <= l.out[life.Node]:
		bad("a life after its end")
	case life == l.self:
		bad("its own life as another's")
	}
	l.in[life.Node] = life.Generation
}
