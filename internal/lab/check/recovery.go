package check

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// recovery (I13): after the last fault has ended, every pair of nodes that tried to connect after
// it, both running, gets a connection within the bound. A try that fails counts if the peer's
// application was there.
//
// It needs opened records, returns of connect that name the node, and process records.
type recovery struct {
	judge
	quiet, limit int64
	worked       map[[2]int]int64 // first opened after quiet
	tried        map[[2]int]int   // first try after quiet: its record
}

func newRecovery(g judge) *recovery {
	quiet := g.w.lastEnd()
	return &recovery{g, quiet, quiet + g.w.within(g.w.bound.Connect), map[[2]int]int64{}, map[[2]int]int{}}
}

func (m *recovery) see(i int, r *history.Record) {
	if m.quiet == never || len(m.w.faults) == 0 || m.w.finish() <= m.limit {
		return
	}
	switch b := r.Body.(type) {
	case *history.Opened:
		if b.Side == history.Client && r.At >= m.quiet {
			pair := m.try(i, r.Source.Node, m.w.nodeOf(b.Remote))
			if _, known := m.worked[pair]; !known {
				m.worked[pair] = r.At
			}
		}
	case *history.Return:
		if b.Name == "connect" && b.To != nil && b.Began >= m.quiet && r.At <= m.limit && m.listens(*b.To) {
			m.try(i, r.Source.Node, *b.To)
		}
	}
}

// try notes that a node has tried to connect to another one.
func (m *recovery) try(i, from, to int) (pair [2]int) {
	pair = [2]int{from, to}
	if _, known := m.tried[pair]; !known {
		m.tried[pair] = i
	}
	return pair
}

// listens reports whether the application of a node is there until the limit.
func (m *recovery) listens(node int) bool {
	apps := m.w.at(node).apps
	return len(apps) == 0 || slices.ContainsFunc(apps, func(p *proc) bool {
		return p.start <= m.quiet+m.w.order() && p.end > m.limit && !m.w.stopped(p, m.quiet, m.limit)
	})
}

func (m *recovery) finish() {
	for _, pair := range inOrder(m.tried) {
		if !m.w.runs(pair[0], m.quiet, m.limit) || !m.w.runs(pair[1], m.quiet, m.limit) {
			continue
		}
		at, ok := m.worked[pair]
		if !ok {
			at = never
		}
		m.inTime(m.quiet, m.limit, at, []int{m.tried[pair]}, "no connection from node %s to node %s opens within %s after the last fault",
			m.w.begin.NodeLabel(pair[0]), m.w.begin.NodeLabel(pair[1]), time.Duration(m.limit-m.quiet))
	}
}
