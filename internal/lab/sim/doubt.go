package sim

import (
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/membership/verdict"
)

// tellDoubt notifies all other nodes that this one hears nothing of an incarnation that it watches.
func (a *agent) tellDoubt(n verdict.Node) {
	in := verdict.Doubt{By: a.member.Self().Incarnation, Incarnation: n.Incarnation}
	for _, m := range a.w.machines {
		if m == a.at || m.proc == nil {
			continue
		}
		a.sent++
		o := m.proc
		c := a.w.net.path(a.at.index, m.index, faults.Gossip, faults.Packets).cross(a.w.now, packetLen)
		if !c.Drop {
			a.w.after(c.Delay, func() { o.soon(func() { o.agent.feedMember(in) }) })
		}
	}
}

// lookAt checks whether a node answers or refuses at the address of an incarnation.
func (a *agent) lookAt(x verdict.Look) {
	l := a.line(incarnationKey{x.UUID, x.Epoch})
	if l.dialing {
		return // the look under way reports
	}
	l.dialing = true
	limit := a.w.timing.Check
	until := a.w.now + limit
	a.reach(x.Contact, limit, func(up *tcpEnd, met verdict.Sight) {
		l.dialing = false
		a.release(up)
		if n, ok := a.living(l.key); ok && (met != verdict.SawNobody || a.w.now < until) {
			a.tellMet(l, n, met)
		}
	})
}

// living returns the incarnation of a start of a node, if the table has it.
func (a *agent) living(k incarnationKey) (verdict.Node, bool) {
	for _, n := range a.member.Nodes() {
		if n.UUID == k.uuid && n.Epoch == k.epoch {
			return n, true
		}
	}
	return verdict.Node{}, false
}
