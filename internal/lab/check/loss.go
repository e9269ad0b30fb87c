package check

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// host is the index of the host.
const host = 0

// A loss is the end of an incarnation as it concerns one observer that knew it, and the fault behind it.
// The expectation removed and the figure time_to_removed count from since, at the same observers.
type loss struct {
	*incarnation
	known *knownPeer // of the observer
	fault *fault     // nil: none of the node or of a link of it
	// own: the incarnation went on. It is the observer that a fault cut off.
	own bool
	// since is when the lab began to put the fault in place, but not later than
	// the end of the incarnation; without a fault that end.
	since int64
	// placed is when the whole fault was in place, but not later than the end of the process: the
	// lab has several commands to give, and between the first and the last one no node need be
	// lost. Bounds count from it.
	placed int64
}

// losses returns the ends of incarnations of a node, before the run ended, that an observer
// has to be notified of.
func (w *world) losses(node int, s *session) []loss {
	var all []loss
	for _, l := range w.at(node).incarnations {
		for _, a := range s.ever(l.incarnation) {
			end, own := w.endTo(s.source.Node, l, a)
			if end >= w.finish() {
				continue
			}
			x := w.lossOfIncarnation(l, a, end, own)
			// An observer that attached later, or was new to all then, knew
			// nothing of the incarnation.
			if a.since <= x.since && x.since < a.cleared {
				all = append(all, x)
			}
		}
	}
	return all
}

// endTo returns when an incarnation ended for an observer: it ended, or this observer or another one was
// notified so, and by which fault of an observer, if it went on. A notice to an observer that was
// itself cut off is no end to the others.
func (w *world) endTo(observer int, l *incarnation, a *knownPeer) (end int64, own *fault) {
	end = l.gone
	for _, n := range l.notices {
		if a.since <= n.removed && n.removed < end && (n.own == nil || w.ails(n.own, observer)) {
			end, own = n.removed, n.own
		}
	}
	return end, own
}

// lossOfIncarnation returns a loss, with the fault that ended the incarnation, or ailed its observer.
func (w *world) lossOfIncarnation(l *incarnation, a *knownPeer, end int64, own *fault) loss {
	x := loss{incarnation: l, known: a, fault: own, own: own != nil, since: end, placed: end}
	if own == nil {
		x.fault = w.blamed(l.node, end)
	}
	if x.fault != nil {
		x.since = min(end, x.fault.begin)
		x.placed = max(x.since, w.placed(x.fault, l.node))
	}
	return x
}

// blamed returns the latest fault that explains the end of an incarnation of a node at a time.
func (w *world) blamed(node int, end int64) *fault {
	for _, f := range slices.Backward(w.faults) {
		if f.Harm == history.HarmRemove && f.begin <= end+w.order() && w.harms(f, node) {
			return f
		}
	}
	return nil
}

// harms reports whether a fault is a reason to lose a node: it ails the node, or is of
// a link of it and ails no other one.
func (w *world) harms(f *fault, node int) bool {
	return w.ailed(f)[node] || len(w.ailed(f)) == 0 && f.onAnyWay(node)
}

// ails reports whether a fault is of a node itself.
func (w *world) ails(f *fault, node int) bool { return w.ailed(f)[node] }

// ailed are the nodes that a fault ails. Of a history with thousands of faults each is
// asked for time and again.
func (w *world) ailed(f *fault) map[int]bool {
	if f.ailed == nil {
		f.ailed = map[int]bool{}
		for _, s := range w.nodes.list {
			if w.isOf(f, s.id) {
				f.ailed[s.id] = true
			}
		}
	}
	return f.ailed
}

// isOf reports whether a fault is of a node itself: of the node as a whole, or a cut
// from the host that leaves the host another node.
func (w *world) isOf(f *fault, id int) bool {
	if f.onNode(id) {
		return true
	}
	if id == host || !f.onWay(id, host) {
		return false
	}
	return slices.ContainsFunc(w.nodes.list, func(other *node) bool {
		return other.id != host && other.id != id && !f.onWay(other.id, host)
	})
}

// ownFault returns the fault by which an observer was notified of the end of an incarnation that
// went on: one that ails the observer, from while it knew the incarnation. nil: none, or the
// node of the incarnation was harmed then.
func (w *world) ownFault(l *incarnation, observer int, a *knownPeer) *fault {
	if a.removed == never || l.gone <= a.removed+w.order() {
		return nil
	}
	var own *fault
	for _, f := range w.faults { // in the order of their beginnings
		if f.begin > a.removed+w.order() {
			break
		}
		if f.Harm != history.HarmRemove || !w.around(f, a.removed) {
			continue
		}
		detected := f.end == never || a.removed <= f.end+w.within(w.bound.Silence)
		if detected && w.harms(f, l.node) {
			return nil
		}
		if f.end >= a.since && w.ails(f, observer) && !w.ails(f, l.node) {
			own = f
		}
	}
	return own
}

// ailing reports whether an observer, and not a node, was cut off at some time from a
// to b, or so shortly before that it may still not be back.
func (w *world) ailing(observer, node int, a, b int64) bool {
	return slices.ContainsFunc(w.faults, func(f *fault) bool {
		return f.Harm == history.HarmRemove && f.begin <= b && f.end >= a-w.within(w.bound.Silence) && w.ails(f, observer) && !w.ails(f, node)
	})
}

// notice collects the ends of incarnations that observers were notified of, and by which fault of
// their own.
func (w *world) notice() {
	for _, s := range w.sessions.list {
		for id := range s.known {
			l := w.incarnations.get(id)
			for _, a := range s.ever(id) {
				if a.removed != never {
					a.own = w.ownFault(l, s.source.Node, a)
					l.notices = append(l.notices, a)
				}
			}
		}
	}
}

// placed returns when the whole of a fault was in place for a node, but not later than
// the end of a process of it that the fault has ended.
func (w *world) placed(f *fault, node int) int64 {
	at := max(f.begin, w.records[f.index].At)
	for _, l := range w.at(node).incarnations {
		if l.gone >= f.begin {
			at = min(at, l.gone)
		}
	}
	return at
}
