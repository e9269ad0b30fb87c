package check

import "github.com/fabricd/fabricd/internal/history"

// A loss is a life that ended, and what ended it. The expectation removed and the
// figure time_to_removed count from since, at the same observers.
type loss struct {
	*life
	fault *fault // nil: none of the slot or of a link of it
	// since is when the lab began to put the fault in place, but not later than
	// the end of the life; without a fault that end.
	since int64
	// placed is when the whole fault was in place, but not later than the end of
	// the process: the lab has several commands to give, and between the first
	// and the last one nobody need be lost. Bounds count from it.
	placed int64
}

// losses returns the lives of a slot that ended before the run did.
func (w *world) losses(slot int) []loss {
	var all []loss
	s := w.slots[slot]
	if s == nil {
		return nil
	}
	for _, l := range s.lives {
		end := min(l.gone, l.told)
		if end >= w.finish() {
			continue
		}
		lost := loss{life: l, since: end, placed: end}
		for i := len(w.faults) - 1; i >= 0; i-- {
			f := w.faults[i]
			if f.Harm == history.HarmRemove && f.begin <= end+w.order() && (f.onNode(slot) || f.onAnyWay(slot)) {
				lost.fault, lost.since = f, min(end, f.begin)
				lost.placed = max(lost.since, w.placed(f, slot))
				break
			}
		}
		all = append(all, lost)
	}
	return all
}

// placed returns when the whole of a fault was in place for a slot, but not later than
// the end of a process of it that the fault has ended.
func (w *world) placed(f *fault, slot int) int64 {
	at := max(f.begin, w.records[f.index].At)
	if s := w.slots[slot]; s != nil {
		for _, l := range s.lives {
			if l.gone >= f.begin {
				at = min(at, l.gone)
			}
		}
	}
	return at
}
