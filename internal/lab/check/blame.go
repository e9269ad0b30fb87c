package check

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// aftermath is how long after its end a fault explains events: the grace of a host that came back,
// and the healing.
const aftermath = 20 * time.Second

// around reports whether a fault may explain something at a time.
func (w *world) around(f *fault, at int64) bool {
	return f.begin <= at+w.order() && (f.end == never || at <= f.end+w.within(aftermath))
}

// onNode reports whether the fault touches a node as a whole.
func (f *fault) onNode(node int) bool { return slices.Contains(f.Nodes, node) }

// onApp reports whether the fault touches the application of a node.
func (f *fault) onApp(node int) bool { return slices.Contains(f.Apps, node) }

// onWay reports whether the fault touches a link between two nodes, in either
// direction.
func (f *fault) onWay(a, b int) bool {
	for _, w := range f.Ways {
		if slices.Contains(w.From, a) && slices.Contains(w.To, b) || slices.Contains(w.From, b) && slices.Contains(w.To, a) {
			return a != b
		}
	}
	return false
}

// onAnyWay reports whether the fault touches any link of a node.
func (f *fault) onAnyWay(node int) bool {
	return slices.ContainsFunc(f.Ways, func(w history.Way) bool {
		return slices.Contains(w.From, node) || slices.Contains(w.To, node)
	})
}

// together reports whether the fault cuts two nodes off from the host, and not from
// each other. The one goes on for the other: that the host has removed it is known
// when the network is whole again.
func (f *fault) together(a, b int) bool {
	return f.onWay(a, host) && f.onWay(b, host) && !f.onWay(a, b)
}

// removable returns the latest fault that explains that an observer is notified of
// the end of an incarnation of a node, nil if there is none:
//
//   - a fault of the node or of the observer as a whole;
//   - of a link between the two, or between the node and the host, which decides;
//   - while the observer may have been without the host, of any link of the node,
//     also one that may only reset connections, and of any other node as a whole:
//     each node decides for itself then, and one that gave up another which
//     runs may have to begin anew when the host is back;
//   - a cut that takes the host off the network: it gives up all nodes;
//   - where pairs that lost each other are parted, of any link of the node.
func (w *world) removable(node, observer int, at int64) *fault {
	alone, parted := false, w.begin.LostPair == string(scenario.LostPairEvict)
	for _, f := range w.faults {
		alone = alone || f.Harm == history.HarmRemove && (f.onNode(0) || f.onWay(observer, 0)) && w.around(f, at)
	}
	for _, f := range slices.Backward(w.faults) {
		if f.Harm == history.HarmNone || !w.around(f, at) {
			continue
		}
		if alone && (f.onAnyWay(node) || f.Harm == history.HarmRemove && len(f.Nodes) > 0 && !f.onNode(0)) {
			return f
		}
		if f.Harm == history.HarmRemove &&
			(f.onNode(node) || f.onNode(observer) || f.onWay(node, observer) || f.onWay(node, 0) || f.Cut && f.onNode(0) || parted && f.onAnyWay(node)) {
			return f
		}
	}
	return nil
}

// resettable returns the latest fault that explains a reset of a connection
// between two nodes, nil if there is none.
func (w *world) resettable(a, b int, at int64) *fault {
	for _, f := range slices.Backward(w.faults) {
		if f.Harm == history.HarmNone || !w.around(f, at) {
			continue
		}
		if f.onNode(a) || f.onNode(b) || f.onApp(a) || f.onApp(b) || f.onWay(a, b) {
			return f
		}
		if f.Harm == history.HarmRemove && (f.onWay(a, 0) || f.onWay(b, 0)) {
			return f
		}
	}
	if f := w.removable(a, b, at); f != nil {
		return f
	}
	return w.removable(b, a, at)
}

// lastEnd returns when the last fault ended or the last process was started
// again or ended, before the run ended; never if a fault that may do harm lasts
// to the end.
func (w *world) lastEnd() int64 {
	last, finish := int64(0), w.finish()
	for _, f := range w.faults {
		switch {
		case f.end <= finish:
			last = max(last, f.end)
		case f.Harm != history.HarmNone:
			return never
		}
	}
	for _, p := range w.procs.list {
		if p.source.Role != history.RoleDaemon {
			continue
		}
		last = max(last, p.start)
		if p.end <= finish {
			last = max(last, p.end)
		}
		for _, s := range p.stops {
			if s.to == never && p.end > finish {
				return never
			}
			if s.to <= finish {
				last = max(last, s.to)
			}
		}
	}
	return last
}

// finish is when the run ended: when its remains were counted, before the lab took the cluster
// down; else the end record, else the last record.
func (w *world) finish() int64 {
	if w.settled != never {
		return w.settled
	}
	if w.endAt >= 0 {
		return w.records[w.endAt].At
	}
	return w.end
}

// runs reports whether the daemon of a node runs all the time from a to b, and does not stand still
// for longer than must stay unnoticed.
func (w *world) runs(node int, a, b int64) bool {
	return slices.ContainsFunc(w.at(node).daemons, func(p *proc) bool {
		return p.start <= a && p.end > b && !w.stopped(p, a, b)
	})
}

// daemonEnded reports whether a daemon of a node ended between two times, both included.
func (w *world) daemonEnded(node int, from, to int64) bool {
	return slices.ContainsFunc(w.at(node).daemons, func(p *proc) bool { return from <= p.end && p.end <= to })
}

// stopped reports whether a process stood still at some time from a to b for longer than must stay
// unnoticed.
func (w *world) stopped(p *proc, a, b int64) bool {
	return slices.ContainsFunc(p.stops, func(x interval) bool {
		return x.from <= b && x.to > a && (x.to == never || x.to-x.from > w.within(w.bound.Pause))
	})
}

// alive reports whether a process lives all the time from a to b, and does not stand still for longer
// than must stay unnoticed. One without a record lives as long as the run.
func (w *world) alive(s history.Source, a, b int64) bool {
	p := w.procs.get(s)
	return p == nil || p.end > b && !w.stopped(p, a, b)
}

// stood returns how long the processes of a node stood still between a and b.
func (w *world) stood(node int, a, b int64) int64 {
	var total int64
	s := w.at(node)
	for _, p := range slices.Concat(s.daemons, s.apps) {
		for _, x := range p.stops {
			if from, to := max(x.from, a), min(x.to, b); from < to {
				total += to - from
			}
		}
	}
	return total
}

// current returns the incarnation that a node has at a time, nil if none.
func (w *world) current(node int, at int64) *incarnation {
	for _, l := range slices.Backward(w.at(node).incarnations) {
		if l.born <= at && l.gone > at {
			return l
		}
	}
	return nil
}

// lossOf returns when an incarnation was lost to a call of a source that began at a time: its process
// ended, it was reset, or the source was notified of its end since it has the incarnation that it had then.
// never: not. Events at other sources do not count: the two sides of a split give each other up.
func (w *world) lossOf(source history.Source, l addr.Incarnation, began int64) int64 {
	lost := int64(never)
	if x := w.incarnations.get(l); x != nil {
		lost = x.gone
	}
	if s := w.sessions.get(source); s != nil {
		for _, a := range s.ever(l) {
			if a.cleared > began {
				lost = min(lost, a.removed)
			}
		}
	}
	return lost
}
