package engine

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/wire"
)

// The paths on which RMA operations come to windows of this node.
const (
	overLink = iota
	overPath
)

// The names of metrics for those, and for kinds of operations and fences.
var (
	pathNames  = [...]string{"link", "path"}
	rmaKinds   = [...]string{"read", "write", "signal", "atomic"}
	fenceKinds = [...]string{"mark", "wait", "signal"}
)

// An RMACount is how many operations of one kind have come on one path, refused ones included,
// and how many bytes reads and writes were for.
type RMACount struct {
	Kind, Path        string
	Operations, Bytes uint64
}

// Carried are bytes as the kernel counts them, TLS's own included.
type Carried struct{ Sent, Received uint64 }

// A pair is two counts that need no lock.
type pair [2]atomic.Uint64

func (p *pair) carried(sent, received uint64) {
	p[0].Add(sent)
	p[1].Add(received)
}

// operations count operations for peers and for applications.
type operations struct {
	rma             [len(rmaKinds)][len(pathNames)]pair // operations and bytes
	fences          [len(fenceKinds)]atomic.Uint64
	messages, paths pair // bytes that paths of messages and of RMA had carried when they were asked last
}

// overLink counts a frame that has been handled.
func (o *operations) overLink(h wire.Header, body []byte) {
	switch h.Type {
	case wire.TypeRead:
		f, _ := wire.ParseRead(h.Flags, body) // it is one: it was handled
		o.rma[0][overLink].carried(1, f.Length)
	case wire.TypeWrite:
		f, _ := wire.ParseWrite(h.Flags, body) // as above
		o.rma[1][overLink].carried(map[bool]uint64{true: 1}[f.Last], uint64(f.Length))
	case wire.TypeSignal:
		o.rma[2][overLink].carried(1, 0)
	case wire.TypeAtomic:
		o.rma[3][overLink].carried(1, 0)
	}
}

// overPath counts an operation that has been done.
func (o *operations) overPath(r *path.RMARequest) {
	switch r.Kind {
	case path.RMARead:
		o.rma[0][overPath].carried(1, r.Length)
	case path.RMAWrite:
		o.rma[1][overPath].carried(1, r.Length)
	case path.RMASignal:
		o.rma[2][overPath].carried(1, 0)
	case path.RMAAtomic:
		o.rma[3][overPath].carried(1, 0)
	}
}

// carried adds the bytes sent and received by the path since the last call.
func (p *anyPath) carried(to *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket != nil {
		to.carried(p.socket.Moved())
	}
}

// countOperations adds to c the counts that are kept without its lock.
func (n *Node) countOperations(c *Counters) {
	o := &n.counters.operations
	n.connected(func(_ *endpoint, c *conn, _ core.State, _, _ addr.Addr) {
		c.path.carried(&o.messages)
		c.rma.out.carried(&o.paths)
		c.rma.in.carried(&o.paths)
	})
	for kind := range o.rma {
		for p := range o.rma[kind] {
			n := &o.rma[kind][p]
			c.RMA = append(c.RMA, RMACount{rmaKinds[kind], pathNames[p], n[0].Load(), n[1].Load()})
		}
	}
	c.Fences = make(map[string]uint64)
	for kind := range o.fences {
		c.Fences[fenceKinds[kind]] = o.fences[kind].Load()
	}
	c.MessagePaths = Carried{o.messages[0].Load(), o.messages[1].Load()}
	c.RMAPaths = Carried{o.paths[0].Load(), o.paths[1].Load()}
}

// Queues returns how full the fullest queue of each kind is. 1 is full, and then its slow
// reader is cut off: the control frames of a link, the frames of a connection's
// operations, the node events of an application.
func (n *Node) Queues() map[string]float64 {
	control, frames, events := 0, 0.0, 0
	for _, l := range n.allLinks() {
		control = max(control, len(l.control))
	}
	n.connected(func(_ *endpoint, c *conn, _ core.State, _, _ addr.Addr) {
		c.mu.Lock()
		frames = max(frames, c.core.Fill())
		c.mu.Unlock()
	})
	n.mu.Lock()
	sessions := slices.Collect(maps.Keys(n.sessions))
	n.mu.Unlock()
	for _, s := range sessions {
		s.events.mu.Lock()
		for w := range s.events.watchers {
			events = max(events, len(w.queue))
		}
		s.events.mu.Unlock()
	}
	return map[string]float64{"control": float64(control) / controlQueue, "operations": frames, "node_events": float64(events) / eventsMax}
}
