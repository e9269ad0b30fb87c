package engine_test

import (
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// A netConfig configures a testNet. The zero netConfig is a perfect network.
type netConfig struct {
	Seed          uint64
	Delay, Jitter time.Duration // of all traffic
	Rate          int64         // bytes per second; 0: no bound
}

// A testNet is a network in memory, whose links a test delays, cuts and heals.
type testNet struct {
	cfg netConfig
	hub *mem.Hub

	mu    sync.Mutex // guards the fields below
	nodes []*netNode
}

// A netNode is a provider of a testNet, under the rules of its own layer.
type netNode struct {
	transport.Provider
	inner *mem.Provider
	layer *inject.Layer
	id    addr.NodeID // for rules; the same for all providers of one identity
	uuid  addr.UUID
}

// Close closes the provider and its layer.
func (n *netNode) Close() error {
	defer n.layer.Close()
	return n.Provider.Close()
}

// ruleCut names the rules of a Cut.
const ruleCut = "cut"

// ruleDead names the rules of a node that was killed in silence.
func ruleDead(id addr.NodeID) string { return fmt.Sprint("dead ", id) }

func newTestNet(cfg netConfig) *testNet { return &testNet{cfg: cfg, hub: mem.NewHub(mem.Config{})} }

// Provider adds a provider at address. Where one was killed in silence, its old peers now see a
// reset.
func (n *testNet) Provider(address string, id transport.Identity) (transport.Provider, error) {
	inner, err := n.hub.Provider(address, id)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	node := &netNode{inner: inner, id: addr.NodeID(len(n.nodes)), uuid: id.Node}
	for _, other := range n.nodes {
		if other.uuid == id.Node {
			node.id = other.id
		}
	}
	n.revive(node.id)
	plane := faults.NewPlane(faults.Options{Seed: n.cfg.Seed + uint64(node.id) + 1})
	plane.SetSelf(node.id)
	way := faults.Rule{On: faults.Link, At: faults.AtFrom, Rate: faults.Bytes(n.cfg.Rate),
		Delay: faults.Duration(n.cfg.Delay), Jitter: faults.Duration(n.cfg.Jitter)}
	if way.Rate > 0 || way.Delay+way.Jitter > 0 {
		if _, err := plane.Add(way); err != nil {
			return nil, err
		}
	}
	node.layer = inject.New(plane)
	node.Provider = node.layer.Provider(inner, false)
	n.nodes = append(n.nodes, node)
	for _, other := range n.nodes {
		other.knows(node)
		node.knows(other)
	}
	return node, nil
}

func (n *netNode) knows(other *netNode) {
	n.layer.Plane().Names.SetID(other.uuid, other.id)
	n.layer.Plane().Names.SetPlace(other.uuid, other.Addr())
}

// both returns like for the traffic between a and b, in both directions.
func both(like faults.Rule, a, b faults.Nodes) []faults.Rule {
	like.On = faults.Link
	there, back := like, like
	there.From, there.To, back.From, back.To = a, b, b, a
	return []faults.Rule{there, back}
}

// Cut stops all traffic between two addresses until HealAll.
func (n *testNet) Cut(a, b string) {
	if a == b {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range n.nodes {
		n.add(node, both(faults.Rule{Name: ruleCut, Cut: true}, n.at(a), n.at(b)))
	}
}

// HealAll undoes every Cut.
func (n *testNet) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range n.nodes {
		node.layer.Plane().RemoveNamed(ruleCut)
	}
}

// at returns the node at an address.
func (n *testNet) at(address string) faults.Nodes {
	for i := range n.nodes {
		if node := n.nodes[len(n.nodes)-1-i]; node.Addr() == address {
			return faults.Nodes{node.id}
		}
	}
	panic("no provider at " + address)
}

func (n *testNet) add(node *netNode, rules []faults.Rule) {
	if _, err := node.layer.Plane().AddAll(rules); err != nil {
		panic(err)
	}
}

// Kill ends the provider at address as a crash of its process would. Its peers see a reset; in
// silence, they see one when a provider of the same identity returns.
func (n *testNet) Kill(address string, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.at(address)
	if !silent {
		n.reset(id)
	}
	for _, node := range n.nodes {
		if silent && node.id != id[0] {
			n.add(node, both(faults.Rule{Name: ruleDead(id[0]), Cut: true}, id, nil))
		}
	}
	for _, node := range n.nodes {
		if node.id == id[0] {
			node.inner.Close()
		}
	}
}

// reset ends the sessions of the others with a node. The caller holds mu.
func (n *testNet) reset(id faults.Nodes) {
	const name = "reset"
	for _, node := range n.nodes {
		if node.id != id[0] {
			n.add(node, both(faults.Rule{Name: name, Reset: true}, id, nil))
		}
	}
	time.Sleep(time.Microsecond) // until the layers have ended them
	for _, node := range n.nodes {
		node.layer.Plane().RemoveNamed(name)
	}
}

// revive lets a node that was killed in silence be reached again. The caller holds mu.
func (n *testNet) revive(id addr.NodeID) {
	dead := 0
	for _, node := range n.nodes {
		dead += node.layer.Plane().RemoveNamed(ruleDead(id))
	}
	if dead > 0 {
		n.reset(faults.Nodes{id})
	}
}
