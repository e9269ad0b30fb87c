package conformance

import (
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// An ending ends connections otherwise than by a close. All rows about one ending
// share a cluster: it happens once, after all of them have prepared for it.
type ending struct {
	name  string
	only  []Pair
	needs feature
	end   func(c *check)

	process    bool          // the peers are endpoints of a process of its own
	own        bool          // it ends the node of the near application
	delivers   bool          // bytes sent before arrive
	connecting syscall.Errno // the result of a connect that waits
	tried      syscall.Errno // the same of TryConnect, which checks the node first
	rows       []row         // of this ending alone
}

// endings are all endings, in the order in which they come.
var endings = []*ending{peerDies, peerStops, peerCrashes, peerRemoved, selfRemoved, ownStops, ownCrashes}

var (
	peerDies = &ending{name: "the peer's application dies", only: []Pair{Across, SameNode}, needs: Processes, process: true, delivers: true, connecting: syscall.ECONNREFUSED, tried: syscall.ECONNREFUSED,
		end: func(c *check) { c.dies() }}
	peerStops = &ending{name: "the peer's node stops", only: []Pair{Across}, delivers: true, connecting: syscall.ECONNREFUSED, tried: syscall.ENODEV,
		end: func(c *check) { c.removed(func() { c.site.Stop(1) }) }}
	peerCrashes = &ending{name: "the peer's node crashes", only: []Pair{Across}, connecting: syscall.ENODEV, tried: syscall.ENODEV,
		end: func(c *check) { c.removed(func() { c.site.Kill(1) }) }}
	peerRemoved = &ending{name: "the peer's node is removed", only: []Pair{Across}, connecting: syscall.ENODEV, tried: syscall.ENODEV,
		end: func(c *check) { c.removed(func() { c.site.Evict(1) }) }}
	selfRemoved = &ending{name: "the own node is removed", only: []Pair{Across}, connecting: syscall.ENODEV, tried: syscall.ENODEV,
		end: func(c *check) { c.site.Evict(0) }}
	ownStops = &ending{name: "the own node stops", needs: Processes, own: true,
		end: func(c *check) { c.site.Stop(0); <-c.near.Done() }}
	ownCrashes = &ending{name: "the own node crashes", needs: Processes, own: true,
		end: func(c *check) { c.site.Kill(0); <-c.near.Done() }}
)

// removed waits until the near application has received the event of the removal that f causes.
func (c *check) removed(f func()) fabric.Event {
	c.Helper()
	events, stop := c.watch()
	defer stop()
	f()
	return c.next(events)
}

// end runs the rows of one ending and counts them.
func (p place) end(t *testing.T, e *ending, rows []row, tally *Tally) {
	var mine []row
	for _, r := range rows {
		if r.ending == e {
			mine = append(mine, r)
		}
	}
	if len(mine) == 0 {
		return
	}
	passed := make([]bool, len(mine))
	t.Run(e.name, func(t *testing.T) {
		p := newPlace(t, p.mode, p.pair, row{})
		c := p.of(t)
		if e.process {
			c.accepts, c.waits, c.dies = c.site.Process(int(c.far.ID()))
		}
		ended := make([]func(c *check), len(mine))
		for i, r := range mine {
			ended[i] = r.after(c)
		}
		e.end(c)
		for i, r := range mine {
			passed[i] = t.Run(r.id(), func(t *testing.T) { ended[i](p.of(t)) })
		}
	})
	for i, r := range mine {
		tally.add(r, passed[i])
	}
}

// mate connects an endpoint to the peer's side of an ending.
func (c *check) mate() end {
	c.Helper()
	if c.dies == nil {
		near, _ := c.connected()
		return near
	}
	near := c.unbound()
	_, err := near.Connect(c.ctx, c.accepts)
	c.must(err)
	return near
}

func init() {
	peerDies.rows = []row{peerDies.left(), peerDies.dial(syscall.ECONNREFUSED)}
	for _, e := range []*ending{peerStops, peerCrashes} {
		e.rows = []row{e.left(), e.leaves(), e.dial(syscall.ENODEV)}
	}
	peerRemoved.rows = []row{peerRemoved.left(), peerRemoved.leaves(), peerRemoved.dial(syscall.ECONNREFUSED)}
	selfRemoved.rows = []row{selfRemoved.left(), selfRemoved.leaves()}
}
