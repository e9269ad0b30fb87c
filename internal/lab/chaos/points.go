package chaos

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// point puts a fault inside a node's daemon. The node's act is held.
func (c *cluster) point(ctx context.Context, s *node, a scenario.Action) (effect, error) {
	d, _, err := s.daemon.running()
	if err != nil {
		return nil, err
	}
	if a.Fault.Kind == scenario.FaultCrash {
		s.following().doomed.Store(true)
	}
	id, err := ask(ctx, func(ctx context.Context) (uint64, error) { return s.admin.AddNodeFault(ctx, a.Fault.Point(a.Seed)) })
	if err != nil && a.Fault.Kind != scenario.FaultCrash {
		return nil, err
	}
	p := &armedFault{c: c, node: s, child: d, fault: a.Fault, id: id, stop: make(chan struct{}), finished: make(chan struct{})}
	p.undoing = undoBy(func(ctx context.Context) (uint64, string, error) {
		defer close(p.stop)
		return p.take(ctx)
	})
	c.followers.wg.Go(p.watch)
	return p, nil
}

// An armedFault is a fault inside a daemon. One at a step ends when it has happened
// as often as it was to; its watch sees that.
type armedFault struct {
	*undoing
	c        *cluster
	node     *node
	child    child
	fault    *scenario.Fault
	id       uint64
	stop     chan struct{} // closed when it is taken back
	finished chan struct{} // closed when it is over by itself
}

// over is closed when nothing more will happen.
func (p *armedFault) over() <-chan struct{} { return p.finished }

// watchEvery is how often a daemon is asked whether a fault has happened.
const watchEvery = 200 * time.Millisecond

// watch waits until the fault is over.
func (p *armedFault) watch() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			if p.child.running() {
				return
			}
			p.restart() // it ended in the moment in which the fault was taken back
			return
		case <-p.child.ended():
			p.restart()
			return
		case <-p.c.followers.ctx.Done():
			return
		case <-ticker.C:
		}
		if p.ended() {
			close(p.finished)
			return
		}
	}
}

// ended asks the daemon whether the fault has ended.
func (p *armedFault) ended() bool {
	if p.fault.Kind == scenario.FaultCrash || p.child.frozen() {
		return false
	}
	all, err := ask(p.c.followers.ctx, p.node.admin.NodeFaults)
	if err != nil {
		return false // it stands still, or is about to end
	}
	for _, r := range all {
		if r.ID == p.id {
			return r.State == failpoint.Ended
		}
	}
	return true
}

// restart starts a daemon that a crash has ended, if it is to be.
func (p *armedFault) restart() {
	defer close(p.finished)
	if p.fault.Kind != scenario.FaultCrash || p.fault.Restart == 0 || !pause(p.c.followers.ctx, p.fault.Restart.Time()) {
		return
	}
	p.node.act.Lock()
	defer p.node.act.Unlock()
	if d, _ := p.node.daemon.current(); d != p.child {
		return // another action has started it
	}
	if err := p.node.startDaemon(p.c.followers.ctx); err != nil && p.c.followers.ctx.Err() == nil {
		p.c.fail(err)
	}
}

// take ends the fault and returns how often it happened.
func (p *armedFault) take(ctx context.Context) (uint64, string, error) {
	if !p.child.running() {
		return p.afterEnd()
	}
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	all, err := p.node.admin.NodeFaults(ctx)
	if err != nil {
		return p.unanswered(err)
	}
	for _, r := range all {
		if r.ID != p.id {
			continue
		}
		if r.State != failpoint.Ended {
			if _, err := p.node.admin.ClearNodeFaults(ctx, p.id); err != nil {
				return p.unanswered(err)
			}
		}
		return reportOf(r)
	}
	return 0, "", fmt.Errorf("the daemon of node %d does not know fault %d", p.node.index, p.id)
}

// unanswered returns the result when the daemon could not be asked: it may have ended
// just now.
func (p *armedFault) unanswered(err error) (uint64, string, error) {
	if p.fault.Kind == scenario.FaultCrash {
		select {
		case <-p.child.ended():
			return p.afterEnd()
		case <-time.After(adminLimit):
		}
	}
	return 0, "", err
}

// afterEnd returns the result of a fault of a daemon that has ended.
func (p *armedFault) afterEnd() (uint64, string, error) {
	if p.fault.Kind == scenario.FaultCrash {
		return 1, fmt.Sprintf("process %d ended with code %d", p.child.pid(), p.child.code()), nil
	}
	return 0, "the daemon has ended, and with it what the fault has counted", nil
}

func reportOf(r daemon.NodeFaultReport) (uint64, string, error) {
	fired := r.Fired
	proof := fmt.Sprintf("happened %d times in %d", r.Fired, r.Hits)
	if r.Fault.Step == "" {
		fired = max(r.Hits, r.Fired)
		proof = fmt.Sprintf("changed %d calls", r.Hits)
	}
	if r.Problem != "" {
		return fired, proof, fmt.Errorf("%s", r.Problem)
	}
	return fired, proof, nil
}

// announceNode sends every application the ID of a node, if it is not the node's
// number or was another one before.
func (c *cluster) announceNode(ctx context.Context, s *node) {
	id := s.nodeID()
	c.mu.Lock()
	if c.ids == nil {
		c.ids = make(map[int]int)
	}
	old, known := c.ids[s.index]
	if !known {
		old = s.index
	}
	c.ids[s.index] = id
	c.mu.Unlock()
	if old == id {
		return
	}
	for _, t := range c.nodes {
		err := t.instruct(ctx, func(w *workload.Control) {
			ids := map[int]int{}
			maps.Copy(ids, w.IDs)
			ids[s.index] = id
			w.IDs = ids
		})
		if err != nil && ctx.Err() == nil {
			c.fail(err)
		}
	}
}

// rotateLimit bounds a change of the cluster's key.
const rotateLimit = 30 * time.Second

// rotate changes the key that seals gossip.
func (c *cluster) rotate(ctx context.Context) (effect, error) {
	k, err := c.nodes[0].admin.RotateKey(ctx, rotateLimit)
	if err != nil {
		return nil, err
	}
	return done{fired: 1, proof: fmt.Sprintf("all nodes use the new key: %+v", k)}, nil
}
