package check

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// recovery (I13): after the last fault has ended, every pair of slots that ever
// tried to connect after it, both running, gets a connection within the bound.
//
// It needs returns of connect, or opened records, and process records.
type recovery struct {
	judge
	quiet  int64
	worked map[[2]int]int64 // first opened after quiet
	tried  map[[2]int]int   // first try after quiet: its record
}

func (m *recovery) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Opened:
		if b.Side == history.Client && r.At >= m.quiet {
			m.try(i, r, b.Remote, true)
		}
	case *history.Return:
		if b.Name == "connect" && b.Began >= m.quiet && b.Peer != (addr.Incarnation{}) {
			m.try(i, r, b.Peer, b.Status == "")
		}
	}
}

// try notes that a source has tried to connect to an incarnation.
func (m *recovery) try(i int, r *history.Record, to addr.Incarnation, worked bool) {
	pair := [2]int{r.Source.Slot, m.w.slotOf(to)}
	if pair[1] < 0 {
		return
	}
	if _, known := m.tried[pair]; !known {
		m.tried[pair] = i
	}
	if _, known := m.worked[pair]; worked && !known {
		m.worked[pair] = r.At
	}
}

func (m *recovery) finish() {
	if m.quiet == never || len(m.w.faults) == 0 {
		return
	}
	late := m.quiet + m.w.within(m.w.bound.Connect)
	for _, pair := range inOrder(m.tried) {
		i := m.tried[pair]
		if !m.w.runs(pair[0], m.quiet, late) || !m.w.runs(pair[1], m.quiet, late) || m.w.finish() <= late {
			continue
		}
		at, ok := m.worked[pair]
		if !ok {
			at = never
		}
		m.inTime(m.quiet, late, at, []int{i}, "no connection from slot %s to slot %s opens within %s after the last fault", m.w.begin.Slot(pair[0]), m.w.begin.Slot(pair[1]), time.Duration(late-m.quiet))
	}
}
