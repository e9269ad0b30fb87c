package check

import "github.com/fabricd/fabricd/internal/lab/history"

// cause (criteria B3 and B4): no incarnation is removed without a reason: its process has ended, or a fault
// that may remove it has touched it, the observer, or the links between it and the observer or the
// host. A fault that by a promise must stay invisible (loss, delay, short pauses) is no reason.
//
// It needs removed and reset events and fault records.
type cause struct{ judge }

func (m *cause) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Event)
	if !ok || b.What != history.EventRemoved && b.What != history.EventReset {
		return
	}
	l := m.w.incarnations.get(b.Subject)
	if l == nil || l.node < 0 {
		return // it never spoke: its node is not known
	}
	// A restart is a reason, and the incarnation may be older than the last process.
	if l.killed && l.gone <= r.At+m.w.order() || m.w.daemonEnded(l.node, r.At-m.w.within(aftermath), r.At+m.w.order()) {
		m.good()
		return
	}
	m.unless(m.w.removable(l.node, r.Source.Node, r.At) != nil, r.At, []int{i},
		"%s is notified that %s was removed (%s), but nothing was done to node %s", r.Source, b.Subject, b.Reason, m.w.begin.NodeLabel(l.node))
}
