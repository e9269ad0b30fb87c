package verdict

import (
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// maxAsked is how many nodes beside the host's own a check asks. Three reach a
// incarnation that is cut off from some of them; more would make a lost switch a
// storm of questions.
const maxAsked = 3

// down takes note that a session ended.
func (h *Host) down(now time.Time, in Down) {
	for _, n := range h.nodes {
		if n.waiting != nil && n.waiting.session == in.Session {
			n.waiting = nil // the waiting process is gone; the decision it caused stands
		}
	}
	n := h.sessions[in.Session]
	if n == nil || in.Session == LocalSession || h.stopped {
		return
	}
	h.detach(now, n)
	if n.phase != live || (in.Cause != DownEnded && in.Cause != DownReset) {
		return // silence is judged by time
	}
	if n.waiting != nil {
		h.remove(now, n, ReasonRestarted)
		return
	}
	why := ReasonCrashed
	if in.Cause == DownReset {
		why = ReasonRestarted
	}
	h.startRedial(now, n, why)
}

// startRedial gives an ended session one chance to be a broken connection
// rather than an ended process. The process may also come back by itself.
func (h *Host) startRedial(now time.Time, n *hostNode, why Reason) {
	n.redial, n.why = now.Add(h.t.Redial), why
	if len(n.node.Addresses()) > 0 {
		h.out.add(Redial{n.node.Contact()})
	}
}

func (h *Host) redialed(now time.Time, in Redialed) {
	n := h.living(in.Incarnation)
	if n == nil || n.redial.IsZero() || h.stopped {
		return
	}
	switch in.Outcome {
	case RedialAlive:
		n.redial, n.lastSeen = time.Time{}, now
	case RedialNewer:
		h.remove(now, n, ReasonRestarted)
	case RedialFailed:
		h.remove(now, n, n.why)
	case RedialUntried: // no evidence about the node: others check
		n.redial = time.Time{}
		h.startCheck(now, n)
	}
}

// judge decides about a live node by its expired deadlines.
func (h *Host) judge(now time.Time, n *hostNode) {
	switch {
	case due(n.redial, now):
		h.remove(now, n, n.why)
	case !n.redial.IsZero():
	case n.check != nil && !now.Before(n.check.deadline):
		switch {
		case n.waiting != nil:
			h.remove(now, n, ReasonRestarted)
		case now.Sub(n.lastSeen) < h.t.Silence && !n.check.losesAll:
			n.check, n.checked = nil, now // it has spoken meanwhile
		default:
			h.remove(now, n, ReasonSilent)
		}
	case n.check != nil:
	case now.Sub(n.lastSeen) >= h.t.Silence:
		h.startCheck(now, n)
	case h.cfg.Partial == PartialEvict:
		h.judgePartial(now, n)
	}
}

// judgeUnclaimed ends an incarnation of an earlier term that was not resumed in time:
// by the end of the grace period, or, if a newer process of the same UUID
// waits, within one silence bound, by which every living member has redialed.
func (h *Host) judgeUnclaimed(now time.Time, n *hostNode) {
	switch {
	case n.waiting != nil && now.Sub(h.started) >= h.t.Silence:
		h.remove(now, n, ReasonRestarted)
	case !now.Before(h.grace):
		h.remove(now, n, ReasonSilent)
	}
}

// judgePartial evicts a node that lost the host, or one of a pair that lost each
// other, after it has stayed so for longer than it takes to find out that a node
// is dead. Complaints of few others evict no node: a node that complains alone is
// the one to go.
func (h *Host) judgePartial(now time.Time, n *hostNode) {
	bound := h.partialBound()
	if !n.up && !n.gone.IsZero() && now.Sub(n.gone) >= bound {
		h.remove(now, n, ReasonPartitioned)
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.complaints)) {
		by := h.find(id)
		if by == nil || by.phase != live || now.Sub(n.complaints[id]) < bound {
			continue // its own end may be decided, and not yet on disk
		}
		loser := h.evicted(by, n)
		h.remove(now, loser, ReasonPartitioned)
		if loser == n {
			return
		} // else others may complain about n too: nothing stays due
	}
}

// evicted returns which of two has to go, of which by complains about n.
func (h *Host) evicted(by, n *hostNode) *hostNode {
	_, mutual := by.complaints[n.id()]
	switch {
	case by.id() == addr.Host: // our own node sees it
		return n
	case many(len(n.complaints), len(h.nodes)-1):
		return n
	case mutual && worse(n, by):
		return n
	}
	return by
}

// partialBound returns how long a node may be without the host, or a pair
// without each other, before it is evicted.
func (h *Host) partialBound() time.Duration { return 2 * (h.t.Silence + h.t.Check) }

// worse reports whether a has lost more of the fabric than b.
func worse(a, b *hostNode) bool {
	if len(a.complaints) != len(b.complaints) {
		return len(a.complaints) > len(b.complaints)
	}
	return a.id() > b.id()
}

// report takes a member's report about another incarnation: it starts a check, no more.
func (h *Host) report(now time.Time, from *hostNode, m Report) {
	n := h.living(m.About)
	if n == nil || n == from {
		return
	}
	if n.id() == addr.Host {
		h.takeHostReport(now, from, m.Evidence)
		return
	}
	if m.Evidence == LinkAlive {
		delete(n.complaints, from.id())
		return
	}
	if m.Evidence == EndAnnounced {
		h.dispute(now, n, from)
		return
	}
	if m.Evidence != DeadInGossip {
		if n.complaints == nil {
			n.complaints = make(map[addr.NodeID]time.Time)
		}
		if _, ok := n.complaints[from.id()]; !ok {
			n.complaints[from.id()] = now
		}
	}
	// One look per half bound is enough, however many call for it.
	if n.check == nil && n.redial.IsZero() && now.Sub(n.checked) > h.t.Silence/2 {
		h.startCheck(now, n)
	}
}

// takeHostReport takes the report of n about its link to the host. A node to which nothing of the
// host arrives counts as silent even if it sends, unless another node reaches it within the
// time of a check or it receives us again: a network that is cut in one direction
// would otherwise keep it alive until it gives the host up.
func (h *Host) takeHostReport(now time.Time, n *hostNode, e Evidence) {
	switch {
	case e == LinkAlive && n.check != nil && n.check.losesAll:
		n.check, n.checked = nil, now
	case e != LinkSilent || !n.redial.IsZero() || n.check != nil && n.check.losesAll:
	case n.check == nil && now.Sub(n.checked) <= h.t.Silence/2: // one look per half bound, as in report
	default:
		if n.check == nil {
			h.startCheck(now, n)
		}
		n.check.losesAll = true
		if until := now.Add(h.t.Check); until.Before(n.check.deadline) {
			n.check.deadline = until
		}
	}
}

// startCheck asks the incarnation itself, the host's own node and up to maxAsked
// others whether the incarnation can be reached.
func (h *Host) startCheck(now time.Time, n *hostNode) {
	h.nonce++
	n.check = &check{nonce: h.nonce, deadline: h.checkUntil(now, n)}
	m := Check{Nonce: h.nonce, Contact: n.node.Contact()}
	ask := func(o *hostNode) {
		n.check.asked = append(n.check.asked, o.id())
		h.send(o.session, m)
	}
	if n.up {
		ask(n)
	}
	if h.nodes[0].up {
		ask(h.nodes[0])
	}
	able := h.able(now, n)
	for i := range min(len(able), maxAsked) {
		ask(able[(int(h.nonce%uint64(len(able)))+i)%len(able)])
	}
}

// checkUntil returns when a check that begins now has failed. A report may call
// for one at any time, also in the middle of a gap in the network that is short
// enough to be borne: no node is silent before it would be without the report.
// A process that waits for the end of n needs no patience: its own process is not there.
func (h *Host) checkUntil(now time.Time, n *hostNode) time.Time {
	until := now.Add(h.t.Check)
	if n.waiting == nil {
		until = later(until, n.lastSeen.Add(h.t.Silence+h.t.Check))
	}
	return until
}

// able returns the nodes that can check n: in touch with the host and not in doubt
// themselves.
func (h *Host) able(now time.Time, n *hostNode) []*hostNode {
	var able []*hostNode
	for _, o := range h.nodes[1:] {
		if o != n && o.phase == live && o.up && o.check == nil && now.Sub(o.lastSeen) <= h.t.Silence {
			able = append(able, o)
		}
	}
	return able
}

// checkResult ends a check if a node that was asked reached the incarnation.
func (h *Host) checkResult(now time.Time, from *hostNode, m CheckResult) {
	n := h.living(m.Target)
	if n == nil || n.check == nil || n.check.nonce != m.Nonce || !m.Reached {
		return
	}
	if !slices.Contains(n.check.asked, from.id()) {
		return
	}
	n.check, n.lastSeen, n.checked = nil, now, now
	h.uncontested(n)
}

// remove decides that the incarnation of n is over. The verdict is written first, so
// that a host that restarts in between can neither forget it nor have sent it.
func (h *Host) remove(now time.Time, n *hostNode, why Reason) {
	n.phase, n.why = removing, why
	n.check, n.redial = nil, time.Time{}
	n.lease.end(now, why)
	h.persist(write{node: n}, *n.lease)
}

// removed sends the end of n to all, n included, and then grants the petition that
// waited for it. The end is always sent before the next incarnation begins.
func (h *Host) removed(now time.Time, n *hostNode) {
	h.sendChangesNow(now)
	e := h.end(now, n, n.why)
	h.drop(n)
	verdict := RemovedIncarnation{Term: h.term, Incarnation: e.incarnation, Reason: e.reason}
	if n.shown {
		h.version++
		verdict.Version = h.version
		h.broadcast(n, verdict)
	}
	if n.up {
		h.send(n.session, verdict)
		h.detach(now, n)
	}
	if n.waiting != nil {
		h.grant(now, n.waiting)
	}
}

// end puts the incarnation of n into quarantine and notes the incarnations that have to
// acknowledge: all that may have received it in a table.
func (h *Host) end(now time.Time, n *hostNode, why Reason) *ending {
	e := &ending{incarnation: n.node.Incarnation, reason: why, since: now, sent: now, pending: make(map[addr.NodeID]addr.Generation)}
	for _, o := range h.nodes {
		delete(o.complaints, n.id())
		if o != n && n.shown && (o.phase == live || o.phase == unclaimed) {
			e.pending[o.id()] = o.node.Incarnation.Generation
		}
	}
	for _, other := range h.ended {
		if g, ok := other.pending[n.id()]; ok && g == n.node.Incarnation.Generation {
			delete(other.pending, n.id())
		}
	}
	h.disputes = slices.DeleteFunc(h.disputes, func(d dispute) bool { return d.about == n.node.Incarnation }) // its own reports still count
	h.ended[n.id()] = e
	return e
}

// ack removes a member from those whose acknowledgement is pending.
func (h *Host) ack(from *hostNode, m Ack) {
	if e := h.ended[m.Incarnation.Node]; e != nil && e.incarnation == m.Incarnation {
		delete(e.pending, from.id())
	}
}

// tickEnded repeats verdicts that were not acknowledged and frees IDs whose
// quarantine is over: its time has passed and all have acknowledged.
func (h *Host) tickEnded(now time.Time) {
	for _, id := range slices.Sorted(maps.Keys(h.ended)) {
		e := h.ended[id]
		if len(e.pending) > 0 && now.Sub(e.sent) >= h.t.Resend {
			e.sent = now
			h.repeat(e)
		}
		if len(e.pending) > 0 || now.Sub(e.since) < h.t.Quarantine {
			continue
		}
		delete(h.ended, id)
		if l := h.table.leases[id]; l != nil && l.State == LeaseQuarantine && l.Incarnation() == e.incarnation {
			l.State, l.Since = LeaseFree, now
		}
	}
}

func (h *Host) repeat(e *ending) {
	for _, id := range slices.Sorted(maps.Keys(e.pending)) {
		if n := h.find(id); n != nil && n.up && n.phase == live {
			h.send(n.session, RemovedIncarnation{Term: h.term, Incarnation: e.incarnation, Reason: e.reason})
		}
	}
}
