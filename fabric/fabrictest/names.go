package fabrictest

import (
	"slices"
	"sync"

	"github.com/fabricd/fabricd/internal/engine"
)

// names sends the engines of a cluster the services of the others. An engine that is cut
// off gets them too, as it does a member's removal: the test itself is the membership.
type names struct {
	mu      sync.Mutex // guards engines; held while they are notified, so that they get the newest last
	engines []*engine.Node
}

func (n *names) join(e *engine.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines = append(n.engines, e)
}

func (n *names) leave(e *engine.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines = slices.DeleteFunc(n.engines, func(x *engine.Node) bool { return x == e })
}

// send sends all engines all services: an engine ignores those of an incarnation unknown to it.
func (n *names) send() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.engines {
		incarnation, serves := from.Self().Incarnation, from.Serves()
		for _, to := range n.engines {
			to.NodeServices(incarnation, serves)
		}
	}
}
