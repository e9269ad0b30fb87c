package sim

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// A recorder keeps the history of a run.
type recorder struct {
	keep    func(history.Record) bool // selects the kept records; nil: all
	records []history.Record
	seqs    map[history.Source]uint64
}

// put writes a record in the log of a source.
func (w *world) put(src history.Source, b history.Body) {
	r := &w.log
	if r.seqs == nil {
		r.seqs = make(map[history.Source]uint64)
		r.records = make([]history.Record, 0, 1<<13)
	}
	rec := history.Record{At: int64(w.now), Source: src, Seq: r.seqs[src] + 1, Body: b}
	if r.keep != nil && !r.keep(rec) {
		return
	}
	r.seqs[src]++
	r.records = append(r.records, rec)
}

// did writes a change of a process's state.
func (w *world) did(target history.Source, did history.Did, detail string) {
	code := 0
	if did == history.DidExit && detail != "left" {
		code = 1
	}
	w.put(history.Lab, &history.Process{Target: target, Did: did, Code: code, Detail: detail})
}

// merged returns the history in its order.
func (r *recorder) merged() []history.Record {
	slices.SortFunc(r.records, history.Compare)
	return r.records
}

// count writes the resources that the engine of a process holds.
func (w *world) count(p *proc, phase history.Phase) {
	if p == nil || p.dead {
		return
	}
	n := p.node
	c := map[string]int64{"ports": int64(n.ports.Len()), "links": int64(len(n.links)), "endpoints": 0, "conns": 0, "windows": 0}
	for _, s := range n.sessions {
		c["endpoints"] += int64(len(s.endpoints))
	}
	for _, l := range n.links {
		c["conns"] += int64(len(l.conns))
		for _, id := range sortedKeys(l.conns) {
			c["windows"] += int64(len(l.conns[id].core.Windows()))
		}
	}
	w.put(history.Lab, &history.Resources{Target: p.source(), Phase: phase, Count: c})
}
