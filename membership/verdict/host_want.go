package verdict

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// errNoID reports that no node can have an ID.
func errNoID(id addr.NodeID) error {
	return fmt.Errorf("node-id %d: want 1 to %d", id, addr.FirstReserved-1)
}

// refusesID returns why the host does not give a node the one ID that it wants; code 0: it
// does, or the node takes any. That decides before the join has any effect.
//
// To want an ID gives a node no more than a newcomer has of a free one: a node has one ID
// for good, and that of a node which belongs to the cluster stays that node's while it is
// away.
func (h *Host) refusesID(m Join) (code Refusal, text string) {
	if m.Want == 0 {
		return 0, ""
	}
	own, bound := h.table.bound(m.UUID, m.Previous)
	l := h.table.leases[m.Want]
	switch {
	case m.Want >= addr.FirstReserved:
		return RefusedInvalid, errNoID(m.Want).Error()
	case bound && own == m.Want:
		return 0, ""
	case bound:
		return RefusedInvalid, fmt.Sprintf("node-id %d: this node has the ID %d and keeps it; another one is for a new node, with an empty state directory and a token",
			m.Want, own)
	case l == nil:
		return 0, ""
	case l.State == LeaseActive:
		return RefusedInvalid, fmt.Sprintf("node-id %d: the ID is taken by node %q", m.Want, l.Name)
	case l.UUID != m.UUID && h.table.owner[l.UUID] == m.Want && !m.WantFree:
		return RefusedInvalid, fmt.Sprintf("node-id %d: the ID is that of node %q, which is away; without that node it is free: `fabricd nodes remove %s`",
			m.Want, l.Name, l.Name)
	case l.State == LeaseQuarantine:
		return RefusedFull, fmt.Sprintf("node-id %d: the ID was that of node %q and is in quarantine until %s",
			m.Want, l.Name, h.freeAt(l).UTC().Format(time.RFC3339))
	case !h.table.free(m.Want):
		return RefusedInvalid, fmt.Sprintf("node-id %d: the generations of the ID are used up", m.Want)
	}
	return 0, ""
}

// freeAt returns when the quarantine of a lease is over, if every member has acknowledged
// the end of its incarnation by then.
func (h *Host) freeAt(l *Lease) time.Time {
	since := l.Since
	if e := h.ended[l.ID]; e != nil {
		since = e.since
	}
	return since.Add(h.t.Quarantine)
}

// HadLast returns the node that has an ID, or had it last; ok is false if there was none.
func (h *Host) HadLast(id addr.NodeID) (u addr.UUID, ok bool) {
	if l := h.table.leases[id]; l != nil {
		return l.UUID, true
	}
	return addr.UUID{}, false
}
