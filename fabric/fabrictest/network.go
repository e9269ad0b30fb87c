package fabrictest

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// A network connects the nodes of a cluster. Nodes are named by their identities.
type network interface {
	// join returns the providers of a node that starts, whose links are broken in
	// layer, or not at all if that is nil: the preferred one first, all of one address.
	// The engine closes them.
	join(id transport.Identity, layer *inject.Layer) ([]transport.Provider, error)
	// close is called when every node is down.
	close() error
}

// identityOf returns the identity of node i, the same in all its incarnations.
func (c *Cluster) identityOf(i int) transport.Identity {
	return transport.Identity{Cluster: c.id, Node: nodeUUID(i), Host: addr.NodeID(i) == addr.Host}
}

func (c *Cluster) identity(m *member) transport.Identity {
	return c.identityOf(int(m.peer.Incarnation.Node))
}

// through returns p with its links broken in layer, or p if that is nil.
func through(layer *inject.Layer, p transport.Provider, packets bool) transport.Provider {
	if layer == nil {
		return p
	}
	return layer.Provider(p, packets)
}

// A memory is a network inside the process.
type memory struct{ hub *mem.Hub }

func (m memory) join(id transport.Identity, layer *inject.Layer) ([]transport.Provider, error) {
	p, err := m.hub.Provider(fmt.Sprintf("node-%x", id.Node[12:]), id)
	if err != nil {
		return nil, err
	}
	return []transport.Provider{through(layer, p, false)}, nil
}

func (m memory) close() error { return nil }
