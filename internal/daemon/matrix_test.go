package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// startMany starts n nodes on one network in memory, each of which knows all others. The links of
// one of them pass a layer.
func startMany(t *testing.T, n, one int, layer *inject.Layer) (nodes []*engine.Node) {
	var peers []engine.Peer
	hub := mem.NewHub(mem.Config{})
	for i := range n {
		id := transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{2, byte(i)}, Host: i == 0}
		at := fmt.Sprint("node", i)
		p, err := hub.Provider(at, id)
		if err != nil {
			t.Fatal(err)
		}
		providers := []transport.Provider{p}
		if i == one {
			providers[0] = layer.Provider(p, false)
		}
		layer.Plane().Names.SetID(id.Node, addr.NodeID(i))
		layer.Plane().Names.SetPlace(id.Node, at)
		node := engine.Start(engine.Config{Providers: providers})
		t.Cleanup(func() { node.Close() })
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		node.SetSelf(engine.Self{Self: attach.Self{Cluster: id.Cluster, Incarnation: incarnation}, UUID: id.Node, Epoch: 1, Term: 1})
		nodes, peers = append(nodes, node), append(peers, engine.Peer{Incarnation: incarnation, UUID: id.Node, Epoch: 1, Addresses: []string{at}})
	}
	for i, node := range nodes {
		for j, p := range peers {
			if i != j {
				node.NodeUp(p)
			}
		}
	}
	return nodes
}

// TestTheMatrixOfManyNodesFindsTheRedCell: at 100 nodes all are asked in turn, no more
// than twice 32 at once, and the link that is silent is shown with both of its ends.
func TestTheMatrixOfManyNodesFindsTheRedCell(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many = 100
		layer := inject.New(faults.NewPlane(faults.Options{}))
		t.Cleanup(layer.Close)
		layer.Plane().SetSelf(50)
		nodes := startMany(t, many, 50, layer)
		o := &observer{rows: map[addr.NodeID]saidRow{}}
		snapshot := func() {
			o.last = observe.Snapshot{Time: time.Now(), Self: observe.Self{ID: 0, State: "joined"}, Links: nodes[0].Links()}
			for i := range many {
				o.last.Nodes = append(o.last.Nodes, observe.Node{ID: addr.NodeID(i), Generation: 1, State: "alive"})
			}
			o.at = time.Now()
			o.addRows(&o.last, o.at)
		}
		nodes[0].Measure(t.Context(), many)
		if _, err := nodes[50].Ping(t.Context(), 60); err != nil {
			t.Fatal(err)
		}
		snapshot()
		first := o.last.Shown
		if len(first) != rowsMost || slices.Contains(first, 50) {
			t.Fatalf("shown before there is a problem: %v", first)
		}
		for _, cut := range []faults.Rule{{From: faults.Nodes{50}, To: faults.Nodes{60}}, {From: faults.Nodes{60}, To: faults.Nodes{50}}} {
			cut.On, cut.Cut = faults.Link, true
			if _, err := layer.Plane().Add(cut); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1200 * time.Millisecond)
		for round := range 3 {
			snapshot()
			if ask := new(observer).toAsk(nodes[0].Links(), o.last.Shown); len(ask) > 2*rowsMost {
				t.Errorf("%d are asked at once", len(ask))
			}
			o.askRows(t.Context(), nodes[0])
			o.asked = time.Time{} // another round
			if got := len(o.rows); round == 2 && got != many-1 {
				t.Errorf("%d nodes have reported their links, want %d", got, many-1)
			}
		}
		snapshot()
		if s := o.last.Shown; len(s) != rowsMost || !slices.Contains(s, 0) || !slices.Contains(s, 50) || !slices.Contains(s, 60) {
			t.Errorf("shown are %v, want this node, 50 and 60 among %d", s, rowsMost)
		}
		at := slices.IndexFunc(o.last.Rows, func(r observe.Row) bool { return r.Node == 50 })
		if at < 0 || len(o.last.Rows) != rowsMost-1 {
			t.Fatalf("%d rows, that of node 50 is number %d", len(o.last.Rows), at)
		}
		if row := o.last.Rows[at]; !slices.ContainsFunc(row.Links, func(l observe.RowLink) bool { return l.Node == 60 && l.Severity == observe.Broken }) {
			t.Errorf("the row of node 50 has no red cell: %+v", row)
		}
	})
}
