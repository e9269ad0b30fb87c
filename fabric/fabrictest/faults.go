package fabrictest

import (
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/wait"
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
	links       *faults.Plane
	gone        chan struct{} // closed when the incarnation ends
}

// Crash cuts the incarnation off at once. The rest of Kill is not for the goroutine
// that met the step: Kill waits for it.
func (a *actor) Crash() {
	a.c.isolate(a.links)
	a.c.kills.Go(func() { a.c.killIncarnation(a.i, a.incarnation) })
}

// Freeze lets nothing pass to or from the node for d, and holds up calls that met
// the step.
func (a *actor) Freeze(d time.Duration) error {
	for _, id := range a.c.isolate(a.links) {
		defer a.links.Remove(id)
	}
	wait.For(a.gone, d)
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

// distance names the rule of [Delay]: Heal does not end it.
const distance = "distance"

// delay makes the traffic that the node of p sends take the time of [Delay].
func (c *Cluster) delay(p *faults.Plane) {
	c.tb.Helper()
	if !c.opts.delays() {
		return
	}
	if _, err := p.Add(faults.Rule{Name: distance, On: faults.Link, At: faults.AtFrom, Seed: c.opts.seed,
		Delay: faults.Duration(c.opts.delay), Jitter: faults.Duration(c.opts.jitter)}); err != nil {
		c.tb.Fatalf("fabrictest: delay: %v", err)
	}
}

// isolation names the rules that cut off a node that crashes or is frozen: Heal does not end them.
const isolation = "isolation"

// isolate lets nothing pass to or from the node whose links are given, until the rules that it
// returns are removed.
func (c *Cluster) isolate(links *faults.Plane) (rules []uint64) {
	self := faults.Nodes{links.Self()}
	rules, err := links.AddAll([]faults.Rule{
		{Name: isolation, On: faults.Link, From: self, Cut: true},
		{Name: isolation, On: faults.Link, To: self, Cut: true},
	})
	if err != nil {
		c.tb.Errorf("fabrictest: cut off node %d: %v", links.Self(), err)
	}
	return rules
}
