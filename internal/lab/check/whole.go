package check

import "github.com/fabricd/fabricd/internal/lab/history"

// whole: the history itself is one: it begins with one begin record and ends with one end record
// that marks the run as complete, and every source that writes node events first names itself.
type whole struct {
	judge
	seen map[history.Source]bool
}

func (m *whole) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Begin:
		m.unless(i == m.w.beginAt, r.At, []int{m.w.beginAt, i}, "a second begin record")
	case *history.Event:
		if b.What == history.EventSelf {
			m.seen[r.Source] = true
		} else if b.What != history.EventHost {
			m.unless(m.seen[r.Source], r.At, []int{i}, "%s reports %s before its own incarnation", r.Source, b.Subject)
		}
	case *history.End:
		m.unless(i == m.w.endAt, r.At, []int{m.w.endAt, i}, "a second end record")
		m.unless(b.Complete, r.At, []int{i}, "the run is not complete: %s", b.Why)
	}
}

func (m *whole) finish() {
	m.unless(m.w.beginAt >= 0, 0, nil, "no begin record")
	m.unless(m.w.endAt >= 0, m.w.end, nil, "no end record: the runner itself was ended")
}
