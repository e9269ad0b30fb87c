package check

import "github.com/fabricd/fabricd/internal/lab/history"

// fired (I16): every fault of the run really happened: it has an end record
// without an error and with a count above zero.
type fired struct{ judge }

func (m *fired) see(i int, r *history.Record) {
	if b, ok := r.Body.(*history.FaultEnd); ok {
		if f := m.w.faultOf[b.ID]; f == nil || f.endIndex != i {
			m.fail(r.At, []int{i}, "the end of a fault that did not begin, or has ended")
		}
	}
}

func (m *fired) finish() {
	for _, f := range m.w.faults {
		proof := []int{f.index, f.endIndex}
		switch {
		case m.w.faultOf[f.ID] != f:
			m.fail(f.begin, proof, "fault %d (%s) has begun twice", f.ID, f.What)
		case f.closing == nil:
			m.fail(f.begin, proof, "fault %d (%s) has no end record: whether it did anything is not known", f.ID, f.What)
		case f.closing.Err != "":
			m.fail(f.begin, proof, "fault %d (%s): %s", f.ID, f.What, f.closing.Err)
		case f.idle():
			m.fail(f.begin, proof, "fault %d (%s) never did anything", f.ID, f.What)
		default:
			m.good()
		}
	}
}
