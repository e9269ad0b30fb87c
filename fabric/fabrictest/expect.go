package fabrictest

import (
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
)

// A journal records the runs of nodes, their losses, and the removals of which the nodes of a
// cluster were notified. It has a lock of its own: a waiting ExpectRemoved must not block the removal
// for which it waits.
type journal struct {
	mu      sync.Mutex // guards the fields below
	alive   map[run]bool
	lost    map[int]loss // by node
	removed map[removal]int
	changed chan struct{} // closed and replaced with every entry of removed
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
	return &journal{alive: make(map[run]bool), lost: make(map[int]loss), removed: make(map[removal]int), changed: make(chan struct{})}
}

// change changes the journal's records.
func (j *journal) change(records func(*journal)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	records(j)
}

// follow records the removals that a run of a node reports. It ends with the engine.
func (j *journal) follow(observer run, n *engine.Node) {
	n.NewSession(attach.Credentials{}).Watch(func(ev attach.Event) {
		if ev.Kind != attach.NodeRemoved {
			return
		}
		j.change(func(*journal) {
			j.removed[removal{observer, ev.Incarnation}]++
			close(j.changed)
			j.changed = make(chan struct{})
		})
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
		text = c.journal.missing(i)
		return text == ""
	})
	if !seen {
		c.tb.Errorf("fabrictest: within %v: %s", within, text)
	}
}

// missing describes the missing reports of the removal of node i. The caller holds mu.
func (j *journal) missing(i int) string {
	loss, ok := j.lost[i]
	if !ok {
		return fmt.Sprintf("node %d was not removed", i)
	}
	for _, observer := range loss.notified {
		switch n := j.removed[removal{observer, loss.incarnation}]; {
		case n == 0 && j.alive[observer]:
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
