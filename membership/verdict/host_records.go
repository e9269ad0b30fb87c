package verdict

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A write is the work to do once a Persist is confirmed.
type write struct {
	seq  uint64
	node *hostNode // its grant or removal was written; nil: other records
	term uint64    // the next term, if that was written; else 0
	ids  []addr.NodeID
}

// records are the writes of lease records that the disk has not confirmed.
type records struct {
	seq    uint64               // of the newest Persist
	writes []write              // ascending by seq
	failed map[addr.NodeID]bool // IDs whose record could not be written
	retry  time.Time            // when to write those again
}

// add appends a write of these leases and returns its number.
func (r *records) add(w write, leases []Lease) uint64 {
	r.seq++
	w.seq = r.seq
	for _, l := range leases {
		w.ids = append(w.ids, l.ID)
		delete(r.failed, l.ID)
	}
	r.writes = append(r.writes, w)
	return w.seq
}

// has reports whether the write with this number is not confirmed.
func (r *records) has(seq uint64) bool {
	return slices.ContainsFunc(r.writes, func(w write) bool { return w.seq == seq })
}

// take removes the oldest write, if its number is at most seq.
func (r *records) take(seq uint64) (w write, ok bool) {
	if len(r.writes) == 0 || r.writes[0].seq > seq {
		return write{}, false
	}
	w, r.writes = r.writes[0], r.writes[1:]
	return w, true
}

// fail has the records of w written again after a pause.
func (r *records) fail(w write, now time.Time, pause time.Duration) {
	for _, id := range w.ids {
		r.failed[id] = true
	}
	if r.retry.IsZero() || due(r.retry, now) {
		r.retry = now.Add(pause)
	}
}

// due reports whether to write records again.
func (r *records) due(now time.Time) bool { return len(r.failed) > 0 && due(r.retry, now) }

// persist asks for records to be written, and stores w until that is confirmed.
func (h *Host) persist(w write, leases ...Lease) {
	seq := h.records.add(w, leases)
	h.out.add(Persist{Seq: seq, Term: h.next, Cursor: h.table.cursor, Leases: leases})
}

// persisted goes on with everything that waited for the disk.
func (h *Host) persisted(now time.Time, seq uint64) {
	for {
		w, ok := h.records.take(seq)
		switch {
		case !ok:
			return
		case w.term != 0:
			h.renewed(now, w.term)
		case w.node != nil && w.node.phase == granting:
			if h.find(w.node.id()) == w.node { // else it was taken back meanwhile
				h.granted(now, w.node)
			}
		case w.node != nil && w.node.phase == removing:
			h.removed(now, w.node)
		}
	}
}

// persistFailed refuses a grant, which must not happen without the disk. A removal
// happens all the same: the incarnation is over whether the disk is full or not. The
// records are written again later. An incarnation that is wrongly active on disk until
// then cannot come back, since the members that received its end never take it
// back.
func (h *Host) persistFailed(now time.Time, in PersistFailed) {
	if !h.records.has(in.Seq) {
		return
	}
	h.persisted(now, in.Seq-1)
	w, _ := h.records.take(in.Seq)
	h.note("the lease table could not be written: %s", in.Text)
	h.records.fail(w, now, h.t.Stall)
	switch {
	case w.term != 0:
		h.renewing = false
	case w.node != nil && w.node.phase == granting:
		h.ungrant(now, w.node, RefusedStorage, "the lease table cannot be written: "+in.Text)
	case w.node != nil && w.node.phase == removing:
		h.removed(now, w.node)
	}
}

// rewrite writes the records again that could not be written.
func (h *Host) rewrite(now time.Time) {
	var leases []Lease
	for _, l := range h.table.sorted() {
		if h.records.failed[l.ID] {
			leases = append(leases, *l)
		}
	}
	h.records.retry = now.Add(h.t.Stall)
	h.persist(write{}, leases...)
}
