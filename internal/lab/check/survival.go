package check

import "github.com/fabricd/fabricd/internal/lab/history"

// survival (I15): no daemon ends unasked, and none writes a line that no daemon may write: a panic,
// a data race, a broken invariant.
//
// It needs process records of daemons, and logged records.
type survival struct {
	judge
	asked map[history.Source]int
}

func (m *survival) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Logged:
		m.fail(r.At, []int{i}, "%s: %s", b.Target, b.Line)
	case *history.Process:
		if b.Target.Role != history.RoleDaemon {
			return
		}
		switch b.Did {
		case history.DidStart:
			m.good()
		case history.DidKill, history.DidTerminate:
			m.asked[b.Target] = i
		case history.DidExit, history.DidCrash:
			m.ended(i, r, b)
		}
	}
}

// ended judges the end of a daemon: the lab asked for it, or a fault that may
// remove the node is on it. A run's end is asked for too.
func (m *survival) ended(i int, r *history.Record, b *history.Process) {
	if _, asked := m.asked[b.Target]; asked {
		m.good()
		return
	}
	for _, f := range m.w.faults {
		if f.Harm == history.HarmRemove && f.onNode(b.Target.Node) && m.w.around(f, r.At) {
			m.good()
			return
		}
	}
	m.fail(r.At, []int{i}, "%s has ended by itself: code %d %s", b.Target, b.Code, b.Detail)
}
