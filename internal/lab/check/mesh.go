package check

import (
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// meshSince returns since when, from a time on, every application of the given
// nodes (nil: of all that run at the end) knows the incarnations that all of these
// nodes have at the end, without interruption; false: they do not at the end.
func meshSince(w *world, ids []int, from int64) (int64, bool) {
	end := w.finish()
	current := map[int]addr.Incarnation{}
	for _, s := range w.nodes.list {
		if l := w.current(s.id, end); l != nil && w.runs(s.id, end, end) && (ids == nil || slices.Contains(ids, s.id)) {
			current[s.id] = l.incarnation
		}
	}
	complete := from
	for _, s := range w.sessions.list {
		own, wanted := current[s.source.Node]
		if !wanted || s.source.Role != history.RoleApp || !w.alive(s.source, end, end) || len(s.self) == 0 {
			continue
		}
		last := s.self[len(s.self)-1]
		if last.v != own {
			return 0, false
		}
		complete = max(complete, last.at)
		for node, l := range current {
			if node == s.source.Node {
				continue
			}
			a := s.known[l]
			if a == nil || a.removed != never || a.cleared != never {
				return 0, false
			}
			complete = max(complete, a.since)
		}
	}
	return complete, len(current) > 0
}
