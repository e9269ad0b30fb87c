package fabrictest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// ClearNodeFaults ends all faults of node i's incarnation, which must be up.
func (c *Cluster) ClearNodeFaults(i int) error {
	n, err := c.faultsOf(i)
	if err == nil {
		_, err = n.ClearAll()
	}
	return err
}

func (c *Cluster) faultsOf(i int) (*failpoint.Node, error) {
	if c.opts.unbroken {
		return nil, errors.New("the cluster is Unbroken: its nodes have no faults")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		return nil, fmt.Errorf("node %d is down", i)
	}
	return m.faults, nil
}

// An actor ends or stops one incarnation of a node of the cluster.
type actor struct {
	c           *Cluster
	i           int
	incarnation addr.Incarnation
	gone        chan struct{} // closed when the incarnation ends
}

// Crash cuts the incarnation off at once. The rest of Kill is not for the goroutine
// that met the step: Kill waits for it.
func (a *actor) Crash() {
	a.c.network.crash(a.c.identityOf(a.i))
	a.c.kills.Go(func() { a.c.killIncarnation(a.i, a.incarnation) })
}

// Freeze lets nothing pass to or from the node for d, and holds up calls that met
// the step.
func (a *actor) Freeze(d time.Duration) error {
	undo := a.c.isolate(a.i)
	defer undo()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.gone:
	}
	return nil
}

// Starve implements failpoint.Actor.
func (a *actor) Starve(int) (func() error, error) {
	return nil, errors.New("the nodes of a test cluster share the process's descriptors")
}

// killIncarnation is Kill, unless the node has another incarnation by now.
func (c *Cluster) killIncarnation(i int, incarnation addr.Incarnation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[i]; m.engine != nil && m.peer.Incarnation == incarnation {
		c.killLocked(m)
	}
}

// cuts counts why nothing passes between two nodes: partitions and freezes.
type cuts struct {
	mu    sync.Mutex // guards the fields below
	parts map[[2]int]bool
	still map[int]int // how many freezes a node is in
}

func (x *cuts) open(i, j int) bool {
	return !x.parts[[2]int{min(i, j), max(i, j)}] && x.still[i] == 0 && x.still[j] == 0
}

// isolate cuts node i off from all others until undo is called.
func (c *Cluster) isolate(i int) (undo func()) {
	c.cuts.mu.Lock()
	defer c.cuts.mu.Unlock()
	c.cuts.still[i]++
	for j := range c.size {
		if j != i {
			c.network.cut(c.identityOf(i), c.identityOf(j))
		}
	}
	return func() {
		c.cuts.mu.Lock()
		defer c.cuts.mu.Unlock()
		c.cuts.still[i]--
		c.mendLocked()
	}
}

// part cuts two nodes off from each other until Heal.
func (c *Cluster) part(i, j int) {
	c.cuts.mu.Lock()
	defer c.cuts.mu.Unlock()
	c.cuts.parts[[2]int{min(i, j), max(i, j)}] = true
	c.network.cut(c.identityOf(i), c.identityOf(j))
}

// unpart undoes every part.
func (c *Cluster) unpart() {
	c.cuts.mu.Lock()
	defer c.cuts.mu.Unlock()
	clear(c.cuts.parts)
	c.mendLocked()
}

// mendLocked mends the pairs of nodes that no cut separates any more. The caller
// holds cuts.mu.
func (c *Cluster) mendLocked() {
	for i := range c.size {
		for j := range i {
			if c.cuts.open(i, j) {
				c.network.mend(c.identityOf(i), c.identityOf(j))
			}
		}
	}
}
