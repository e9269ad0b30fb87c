package fabrictest

import (
	"slices"
	"sync"

	"github.com/fabricd/fabricd/internal/engine"
)

// names tells the engines of a cluster what the others serve. An engine that is cut off
// hears of it too, as of a member's removal: membership is the test itself.
type names struct {
	mu      sync.Mutex // guards engines; held while they are told, so that they hear the newest last
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

// tell tells all of all: an engine ignores what is said of a life that it does not know.
func (n *names) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.engines {
		life, serves := from.Self().Life, from.Serves()
		for _, to := range n.engines {
			to.NodeServices(life, serves)
		}
	}
}
