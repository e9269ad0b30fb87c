package fabrictest

import (
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
)

// A journal records the removals of which the nodes of a cluster were notified.
type journal struct {
	mu      sync.Mutex // guards the fields below
	removed map[removal]int
	changed chan struct{} // closed and replaced with every entry
}

// A run is one start of a node: it may have several incarnations, if it is evicted.
type run struct {
	node  addr.NodeID
	epoch uint64
}

func (m *member) run() run { return run{m.peer.Incarnation.Node, m.peer.Epoch} }

// A removal is the end of one incarnation as a run of another node saw it.
type removal struct {
	observer run
	lost     addr.Incarnation
}

func newJournal() *journal {
	return &journal{removed: make(map[removal]int), changed: make(chan struct{})}
}

// follow records the removals that a run of a node reports. It ends with the engine.
func (j *journal) follow(observer run, n *engine.Node) {
	n.NewSession(attach.Credentials{}).Watch(func(ev attach.Event) {
		if ev.Kind != attach.NodeRemoved {
			return
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.removed[removal{observer, ev.Incarnation}]++
		close(j.changed)
		j.changed = make(chan struct{})
	})
}

// wait waits until ok, or until the timer fires.
func (j *journal) wait(timer <-chan time.Time, ok func() bool) bool {
	for {
		j.mu.Lock()
		done, changed := ok(), j.changed
		j.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-timer:
			return false
		}
	}
}

// ExpectRemoved fails the test unless every other node sees NodeRemoved for the
// incarnation of node i that ended last, or ends now, exactly once and within a time. It
// waits for that, and returns when all have seen it.
func (c *Cluster) ExpectRemoved(i int, within time.Duration) {
	c.tb.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	var text string
	seen := c.journal.wait(timer.C, func() bool {
		text = c.missing(i)
		return text == ""
	})
	if !seen {
		c.tb.Errorf("fabrictest: within %v: %s", within, text)
	}
}

// missing describes the missing reports of the removal of node i. The journal's mu
// is held.
func (c *Cluster) missing(i int) string {
	c.losses.Lock()
	defer c.losses.Unlock()
	loss, ok := c.lost[i]
	if !ok {
		return fmt.Sprintf("node %d was not removed", i)
	}
	for _, observer := range loss.notified {
		switch n := c.journal.removed[removal{observer, loss.incarnation}]; {
		case n == 0 && c.alive[observer]:
			return fmt.Sprintf("node %d did not see NodeRemoved of %v", observer.node, loss.incarnation)
		case n > 1:
			return fmt.Sprintf("node %d saw NodeRemoved of %v %d times", observer.node, loss.incarnation, n)
		}
	}
	return ""
}

// A loss is the last incarnation of a node that was lost, and the runs that were notified.
type loss struct {
	incarnation addr.Incarnation
	notified    []run
}

// begins and ends record the runs that exist; loses records that an incarnation is lost for
// others. They take only a lock of their own: a waiting ExpectRemoved must not block
// the removal for which it waits.
func (c *Cluster) begins(r run) {
	c.losses.Lock()
	defer c.losses.Unlock()
	c.alive[r] = true
}

func (c *Cluster) ends(r run) {
	c.losses.Lock()
	defer c.losses.Unlock()
	delete(c.alive, r)
}

func (c *Cluster) loses(incarnation addr.Incarnation, told []run) {
	c.losses.Lock()
	defer c.losses.Unlock()
	c.lost[int(incarnation.Node)] = loss{incarnation, told}
}
