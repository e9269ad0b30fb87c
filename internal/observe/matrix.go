package observe

import (
	"cmp"
	"math"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Matrix returns the nodes that the table of round trips shows: all in s, or if there are more
// than most, this node and then those with the most problems.
func Matrix(s Snapshot, rows []Row, most int) []addr.NodeID {
	ids := make([]addr.NodeID, len(s.Nodes))
	for i, n := range s.Nodes {
		ids[i] = n.ID
	}
	if len(ids) > most {
		all := troubles(s, rows)
		slices.SortFunc(ids, func(a, b addr.NodeID) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) })
		ids = ids[:most]
		slices.Sort(ids)
	}
	return ids
}

// troubles weighs the problems of both ends of links: a broken one counts more than all warnings,
// and one of this node more than those of all rows, which others have reported.
func troubles(s Snapshot, rows []Row) map[addr.NodeID]int64 {
	weights := map[string]int64{Broken: 1 << 20, Warning: 1}
	all := map[addr.NodeID]int64{s.Self.ID: math.MaxInt64 / 2}
	f := &findings{s: s}
	f.nodes()
	f.links()
	for _, x := range f.all {
		all[x.Node] += weights[x.Severity] * int64(len(rows)+1)
	}
	for _, row := range rows {
		for _, l := range row.Links {
			all[row.Node] += weights[l.Severity]
			all[l.Node] += weights[l.Severity]
		}
	}
	return all
}

// Cut returns the part of a row that a matrix of nodes shows, with up to more links to other
// nodes that have problems: for these Matrix may choose them.
func (r Row) Cut(nodes []addr.NodeID, more int) Row {
	links := []RowLink{}
	for _, l := range r.Links {
		if slices.Contains(nodes, l.Node) {
			links = append(links, l)
		} else if l.Severity != "" && more > 0 {
			links, more = append(links, l), more-1
		}
	}
	return Row{r.Node, links}
}
