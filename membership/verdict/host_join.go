package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

func (h *Host) refuse(s SessionID, code Refusal, text string) {
	h.send(s, Refused{Term: h.term, Code: code, Text: text[:min(len(text), MaxText)]})
}

// admit refuses requests that the host can grant in no state. incarnation and term are those
// that the node has proved.
func (h *Host) admit(now time.Time, s SessionID, id Identity, incarnation addr.Incarnation, term uint64) bool {
	if h.stopped {
		h.refuse(s, RefusedStopped, "this host has stepped down")
		return false
	}
	if err := cmp.Or(id.check(), id.within(h.cfg.Networks)); err != nil {
		h.refuse(s, RefusedInvalid, err.Error())
		return false
	}
	if local := s == LocalSession; local != (id.UUID == h.self.UUID) || (local && id.Epoch != h.self.Epoch) {
		h.refuse(s, RefusedDuplicate, "this UUID is the host's own: the state directory was copied")
		return false
	}
	if n := h.sessions[s]; n != nil && n.node.UUID != id.UUID {
		h.out.add(CloseSession{Session: s, Text: "two identities on one session"})
		return false
	}
	if s == LocalSession {
		return true
	}
	h.heed(now, Claim{UUID: id.UUID, Incarnation: incarnation, Term: term})
	switch {
	case h.renewing && !h.served:
		h.refuse(s, RefusedBusy, "the host takes a term that it did not have before")
		return false
	case term > h.term:
		h.refuse(s, RefusedTerm, fmt.Sprintf("you know a host of term %d, this one has term %d", term, h.term))
		h.stepDown(fmt.Sprintf("node %q knows a host of term %d; ours is %d", id.Name(), term, h.term))
		return false
	}
	return true
}

// heed takes the proof that a host of this cluster granted an incarnation. If the table lacks
// it, this host runs on an older copy of its state: no later incarnation begins below the
// one that is proved, and newcomers get no ID that another node may claim. If it was
// granted in our own term or a later one, and not by this process, that term has
// been another host's: a host that serves no node takes one above.
func (h *Host) heed(now time.Time, c Claim) {
	if h.table.lacks(c.UUID, c.Incarnation) {
		h.table.raise(c.Incarnation.Generation)
		h.lost = true
	}
	if h.served || c.Term < h.term || c.Term+1 >= uint64(maxGeneration) {
		return
	}
	h.renew(max(h.next, c.Term) + 1)
	for _, n := range slices.Clone(h.nodes) {
		if n.phase == granting {
			h.ungrant(now, n, RefusedBusy, "the host takes a term that it did not have before")
		}
	}
}

// join answers a Join: at once, after a write, or after the older incarnation of the
// same UUID is over.
func (h *Host) join(now time.Time, s SessionID, m Join) {
	if !h.admit(now, s, m.Identity, m.Previous, m.Term) {
		return
	}
	if s == LocalSession {
		h.adoptLocal()
		return
	}
	if code, text := h.refusesID(m); code != 0 {
		h.refuse(s, code, text)
		return
	}
	p := &petition{session: s, join: m}
	n := h.holder(m.UUID)
	switch {
	case n == nil:
		h.grant(now, p)
	case n.phase == removing:
		h.wait(n, p)
	case n.lease.Epoch != m.Epoch:
		h.contest(now, n, p)
	case n.node.Incarnation == m.Previous:
		if h.wait(n, p) {
			h.remove(now, n, ReasonPartitioned) // its own process gives it up
		}
	case !h.nameTaken(s, n, m.UUID, m.Name()):
		h.adopt(now, n, s, m.Identity, m.Vouched) // it never saw our Grant
	}
}

// resume answers a Resume: the incarnation goes on, or is over.
func (h *Host) resume(now time.Time, s SessionID, m Resume) {
	if !h.admit(now, s, m.Identity, m.Incarnation, m.Term) {
		return
	}
	if s == LocalSession {
		if m.Incarnation == h.self.Incarnation {
			h.adoptLocal()
		} else {
			h.refuse(s, RefusedFenced, "node 0 has a newer incarnation")
		}
		return
	}
	n := h.find(m.Incarnation.Node)
	known := n != nil && n.node.Incarnation == m.Incarnation && n.node.UUID == m.UUID && n.lease != nil && n.lease.Epoch == m.Epoch
	if !known || (n.phase != live && n.phase != unclaimed) {
		h.refuse(s, RefusedFenced, fmt.Sprintf("incarnation %v is over", m.Incarnation))
		return
	}
	if m.HostOver >= h.self.Incarnation.Generation {
		h.resumeDoubted(now, s, n)
		return
	}
	if h.nameTaken(s, n, m.UUID, m.Name()) {
		return
	}
	h.adopt(now, n, s, m.Identity, m.Vouched)
}

// resumeDoubted answers a member that has reported the end of our own incarnation to its
// applications. If we stood still, and most of those that lived then agree, they
// are right, and we take a new incarnation. Otherwise this member has to begin anew.
func (h *Host) resumeDoubted(now time.Time, s SessionID, n *hostNode) {
	n.lastSeen = now // its own process speaks
	if h.renewing || h.outage.hostOver(now, n.node.Incarnation, h.t.Silence) {
		if h.outage.hostIsOver() {
			h.renew(h.term + 1)
		}
		h.refuse(s, RefusedBusy, "the host collects which other members hold that its incarnation is over")
		return
	}
	h.refuse(s, RefusedFenced, fmt.Sprintf("you hold that incarnation %v is over, and it is not", h.self.Incarnation))
}

// renew asks for a later term.
func (h *Host) renew(term uint64) {
	if h.renewing || term >= uint64(maxGeneration) {
		return
	}
	h.renewing = true
	h.next = term
	h.persist(write{term: h.next})
}

// renewed begins node 0's incarnation of the new term.
func (h *Host) renewed(now time.Time, term uint64) {
	h.sendChangesNow(now)
	old := h.nodes[0]
	h.renewing, h.term = false, term
	h.table.raise(addr.Generation(term - 1))
	h.outage.stalled = false // reports of the old incarnation's end are answered: none of them ends the new incarnation
	e := h.end(now, old, ReasonPartitioned)
	h.version++
	h.broadcast(nil, RemovedIncarnation{Term: h.term, Version: h.version, Incarnation: e.incarnation, Reason: e.reason})
	h.detach(now, old)
	h.self.Incarnation.Generation = addr.Generation(term)
	h.self.Since = now
	h.nodes[0] = &hostNode{node: h.self, phase: live, shown: true}
	h.announce(h.nodes[0])
	h.recertify()
}

// recertify gives every incarnation that has a session its lease anew.
func (h *Host) recertify() {
	for _, n := range h.nodes {
		if n.up && n.phase == live {
			h.certify(n)
		}
	}
}

// adoptLocal gives the host's own Member node 0.
func (h *Host) adoptLocal() {
	n := h.nodes[0]
	h.attach(n, LocalSession)
	h.deliver(n)
}

// wait queues p behind the end of n. One petition waits at a time: a retry of
// the same process replaces the older one, any other is refused as busy.
func (h *Host) wait(n *hostNode, p *petition) bool {
	if w := n.waiting; w != nil && w.join.Epoch != p.join.Epoch {
		h.refuse(p.session, RefusedBusy, "another process with this UUID is joining")
		return false
	}
	n.waiting = p
	return true
}

// contest decides between an incarnation and another epoch of the same UUID: a restart
// if the older process is gone, a cloned state directory if it answers.
func (h *Host) contest(now time.Time, n *hostNode, p *petition) {
	if n.phase == granting {
		h.refuse(p.session, RefusedBusy, "this UUID is joining already")
		return
	}
	again := n.waiting != nil
	if !h.wait(n, p) || again {
		return
	}
	switch {
	case n.phase == unclaimed: // it may resume yet; judgeUnclaimed decides
	case !n.redial.IsZero():
		h.remove(now, n, ReasonRestarted)
	default:
		h.startCheck(now, n)
	}
}

// uncontested refuses the process that waits for the end of n: n lives.
func (h *Host) uncontested(n *hostNode) {
	w := n.waiting
	if w == nil {
		return
	}
	n.waiting = nil
	there, here := strings.Join(n.node.Addresses(), ", "), strings.Join(w.join.Addresses(), ", ")
	h.refuse(w.session, RefusedDuplicate, fmt.Sprintf("incarnation %v at %s has the same UUID and answers: the state directory was copied", n.node.Incarnation, there))
	h.note("node %q at %s, on session %d, has the identity of the living node %v at %s: a copied state directory",
		w.join.Name(), here, w.session, n.node.Incarnation, there)
}

// grant leases an ID. Nothing is sent before it is on disk.
func (h *Host) grant(now time.Time, p *petition) {
	m := p.join
	if h.awaitsClaims(now, m) {
		h.refuse(p.session, RefusedBusy, "the lease table is not the last one: nodes that had an ID claim it first")
		return
	}
	if h.nameTaken(p.session, nil, m.UUID, m.Name()) {
		return
	}
	l, err := h.table.grant(now, m.UUID, m.Epoch, m.Name(), m.Previous, m.Want)
	if err != nil {
		h.refuse(p.session, RefusedFull, err.Error())
		return
	}
	n := &hostNode{lease: l, phase: granting, node: m.Identity.node(l.Incarnation()), lastSeen: now}
	n.node.Since, n.node.Labels, n.node.Until = now, m.Labels, m.Until
	h.insert(n)
	h.attach(n, p.session)
	h.persist(write{node: n}, *l)
}

// awaitsClaims reports whether a newcomer has to wait because the lease table
// was lost, or is an older copy, and its ID may be another node's: a node that can
// prove one gets it back within the grace period.
func (h *Host) awaitsClaims(now time.Time, m Join) bool {
	return h.lost && now.Before(h.grace) && m.Previous == (addr.Incarnation{}) && h.table.lookup(m.UUID) == nil
}

// nameTaken refuses a name that another living node has: nodes are addressed by
// name, in rules too. self is the node that asks, nil if it has no incarnation yet.
//
// A node that is known by one name does not get that of another one that is away
// either, which would be refused for good when it is back. A new node does: it may
// be the other one, with a new disk.
func (h *Host) nameTaken(s SessionID, self *hostNode, u addr.UUID, name string) bool {
	for _, o := range h.nodes {
		if o != self && o.name() == name {
			h.refuse(s, RefusedInvalid, fmt.Sprintf("the name %q is that of node %v: choose another one", name, o.node.Incarnation))
			return true
		}
	}
	if own := h.table.lookup(u); own == nil || own.Name == name {
		return false
	}
	for _, l := range h.table.sorted() {
		if l.UUID != u && l.Name == name {
			h.refuse(s, RefusedInvalid, fmt.Sprintf("the name %q is that of node %v, which is away: choose another one", name, l.Incarnation()))
			return true
		}
	}
	return false
}

// granted announces a new incarnation that is safe on disk. If its session has ended
// meanwhile it announces nothing: the process asks again and gets the same incarnation,
// or silence ends it.
func (h *Host) granted(now time.Time, n *hostNode) {
	n.phase, n.lastSeen, h.served = live, now, true
	if n.up {
		h.announce(n)
		h.deliver(n)
	}
}

// ungrant takes back a lease that was never announced. Its generation counts as
// used.
func (h *Host) ungrant(now time.Time, n *hostNode, code Refusal, text string) {
	n.lease.end(now, ReasonLeft)
	h.ended[n.id()] = &ending{incarnation: n.node.Incarnation, reason: ReasonLeft, since: now}
	h.drop(n)
	if n.up {
		s := n.session
		h.detach(now, n)
		h.refuse(s, code, text)
	}
}

// adopt gives n the session s, on which its own process has spoken.
func (h *Host) adopt(now time.Time, n *hostNode, s SessionID, id Identity, v Vouched) {
	n.lastSeen, n.redial, n.check = now, time.Time{}, nil
	h.attach(n, s)
	if n.phase == granting {
		return // granted delivers
	}
	h.uncontested(n)
	changed := n.phase == unclaimed || !n.shown || !n.node.Claims.Equal(id.Claims) ||
		!slices.Equal(n.node.Labels, v.Labels) || !n.node.Until.Equal(v.Until)
	since := n.node.Since
	n.node = id.node(n.node.Incarnation)
	n.node.Since, n.node.Labels, n.node.Until = since, v.Labels, v.Until
	n.phase, h.served = live, true
	if changed {
		h.announce(n)
	}
	h.deliver(n)
}
