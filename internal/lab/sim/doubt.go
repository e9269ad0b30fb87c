package sim

import "github.com/fabricd/fabricd/membership/verdict"

// sendDoubt notifies all other nodes that this one receives nothing from an incarnation that it watches.
func (a *agent) sendDoubt(n verdict.Node) {
	in := verdict.Doubt{By: a.member.Self().Incarnation, Incarnation: n.Incarnation}
	for _, m := range a.w.machines {
		if m == a.at || m.proc == nil {
			continue
		}
		a.sent++
		o := m.proc
		a.gossipTo(o, func() { o.agent.feedMember(in) })
	}
}

// lookAt checks whether a node answers or refuses at the address of an incarnation.
func (a *agent) lookAt(x verdict.Look) {
	l := a.lines.At(verdict.Start{UUID: x.UUID, Epoch: x.Epoch})
	if l.Dialing {
		return // the look under way reports
	}
	l.Dialing = true
	limit := a.w.timing.Check
	until := a.w.now + limit
	a.reach(x.Contact, limit, func(up *tcpEnd, met verdict.DialResult) {
		l.Dialing = false
		a.release(up)
		if n, ok := a.lines.Living(l.Start); ok && (met != verdict.DialUnanswered || a.w.now < until) {
			a.lines.Met(l, n, met, a.w.time())
		}
	})
}
