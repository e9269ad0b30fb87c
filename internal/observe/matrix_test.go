package observe

import (
	"slices"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
)

// cluster is a snapshot of node 0 with n nodes.
func cluster(n int) Snapshot {
	s := Snapshot{Self: Self{ID: 0, State: "joined"}}
	for i := range n {
		s.Nodes = append(s.Nodes, Node{ID: addr.NodeID(i), Generation: 1, State: "alive"})
	}
	return s
}

// TestTheMatrixShowsProblemsFirst: of many nodes this one, those that it finds at fault itself,
// and those of others' reports, of which one that accuses everybody hides none.
func TestTheMatrixShowsProblemsFirst(t *testing.T) {
	s := cluster(64)
	if got := Matrix(s, nil, 64); len(got) != 64 {
		t.Errorf("%d of 64 nodes for which there is room", len(got))
	}
	s.Self.ID = 50
	s.Nodes[60].State = "suspect"
	s.Links = []engine.LinkInfo{{Node: 61, LossPercent: 3}}
	red := func(node addr.NodeID, severity string, to ...addr.NodeID) Row {
		r := Row{Node: node}
		for _, id := range to {
			r.Links = append(r.Links, RowLink{Node: id, Severity: severity})
		}
		return r
	}
	liar := red(63, Broken)
	for i := range addr.NodeID(62) {
		liar.Links = append(liar.Links, RowLink{Node: i, Severity: Broken})
	}
	rows := []Row{liar, red(40, Broken, 41), red(41, Broken, 40), red(20, Warning, 62), red(30, "", 31)}
	got := Matrix(s, rows, 6)
	if want := []addr.NodeID{40, 41, 50, 60, 61, 63}; !slices.Equal(got, want) {
		t.Errorf("of 64 nodes are shown %v, want %v", got, want)
	}
	if got := Matrix(s, nil, 4); !slices.Equal(got, []addr.NodeID{0, 50, 60, 61}) {
		t.Errorf("without reports %v", got)
	}
	if cut := liar.Cut([]addr.NodeID{7, 40}, 3); len(cut.Links) != 5 || cut.Node != 63 {
		t.Errorf("of a row of 62 red links is kept %+v, want the two shown and three more", cut)
	}
	if cut := rows[4].Cut([]addr.NodeID{7}, 3); len(cut.Links) != 0 {
		t.Errorf("of a link without a problem, to a node that is not shown, is kept %+v", cut)
	}
}
