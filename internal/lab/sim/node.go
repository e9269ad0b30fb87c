package sim

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/membership/verdict"
	"github.com/fabricd/fabricd/portmap"
)

// The engine's times that no profile changes.
const (
	connectTimeout = 10 * time.Second
	dialTimeout    = 2 * time.Second
	fenceTime      = time.Second
	messageWindow  = 32 << 10
)

// A node is the shell of the engine in one fabricd: links, endpoints and the frames
// between them. It follows engine.Node. Everything happens on one goroutine, so that a
// link that has failed is quiet at once.
type node struct {
	w *world
	p *proc

	self      core.LinkEnd // Incarnation.Generation 0 while it has none
	times     core.KeepaliveTimes
	ports     *portmap.Table
	listeners map[addr.Port]*endpoint
	peers     map[addr.NodeID]*peerState
	links     []*link
	sessions  []*session
	changes   waiters // for a change of the node table
	ticking   bool
}

// A peerState is the node's state of one live peer.
type peerState struct {
	identity  core.LinkEnd
	at        *machine
	link      *link
	dialing   bool
	dialErr   error
	welcoming int
	lost      bool
	waiting   waiters // for the end of a dial, a welcome or the incarnation
}

func newNode(p *proc) *node {
	t := p.w.timing
	n := &node{w: p.w, p: p,
		self:      core.LinkEnd{Cluster: p.w.cluster, UUID: p.at.disk.uuid, Epoch: p.epoch},
		times:     core.KeepaliveTimes{Heartbeat: min(t.Heartbeat, 2*fenceTime/5), Fence: fenceTime, Silence: t.Silence, Dead: t.Silence + t.Check},
		ports:     portmap.New(),
		listeners: make(map[addr.Port]*endpoint),
		peers:     make(map[addr.NodeID]*peerState),
	}
	p.welcome = n.welcome
	return n
}

// tickLinks keeps the time of every link until there is none.
func (n *node) tickLinks() {
	n.p.after(n.times.Heartbeat, func() {
		if n.ticking = len(n.links) > 0; !n.ticking {
			return
		}
		for _, l := range n.links {
			l.tick()
		}
		n.tickLinks()
	})
}

// membership makes one of membership's events happen here. It reports false if
// the process crashed meanwhile.
func (n *node) membership(e verdict.Event) bool {
	if e.Kind == verdict.EventLocal {
		return true // applications of the simulation wait until they can reach others
	}
	incarnation := e.Node.Incarnation
	switch e.Kind {
	case verdict.EventSelf:
		n.setSelf(e)
	case verdict.EventAdded:
		n.up(e)
	case verdict.EventUpdated:
		if p := n.peers[incarnation.Node]; p != nil && p.identity.Incarnation == incarnation {
			p.at = n.w.machineAt(e.Node.Addresses())
		}
	case verdict.EventRemoved:
		n.lost(e)
	case verdict.EventReset:
		n.reset(e)
	case verdict.EventHost:
		n.publish(e)
	}
	if n.p.dead {
		return false
	}
	if e.Kind != verdict.EventUpdated { // at the same point as the daemon: the engine has dealt with it
		n.w.put(n.p.source(), recordOf(e, n.self.Incarnation))
	}
	return true
}

// setSelf gives the node its incarnation. One other than before ends every connection.
func (n *node) setSelf(e verdict.Event) {
	before, incarnation := n.self.Incarnation, e.Node.Incarnation
	n.self.Incarnation, n.self.Term = incarnation, n.p.agent.member.Term()
	n.p.at.id = incarnation.Node
	n.changes.wake(n.p)
	if before.Generation != 0 && before != incarnation {
		n.failLinks(transport.CodeFenced, func(l *link) bool { return l.self == before })
	}
	n.publish(e)
}

// up makes an incarnation live. The ledger holds that no other one of its ID is.
func (n *node) up(e verdict.Event) {
	v := e.Node
	n.peers[v.Incarnation.Node] = &peerState{at: n.w.machineAt(v.Addresses()),
		identity: core.LinkEnd{Cluster: n.self.Cluster, Incarnation: v.Incarnation, UUID: v.UUID, Epoch: v.Epoch}}
	n.changes.wake(n.p)
	n.publish(e)
}

// lost ends an incarnation. In this order: no new connection reaches it, its link is fenced,
// every operation and blocked call towards it ends, windows are released by the rules,
// and then applications are notified.
func (n *node) lost(e verdict.Event) {
	incarnation := e.Node.Incarnation
	p := n.peers[incarnation.Node]
	if p == nil || p.identity.Incarnation != incarnation || !n.p.step(failpoint.LostBeforeFence) {
		return
	}
	delete(n.peers, incarnation.Node)
	p.lost = true
	p.waiting.wake(n.p)
	n.changes.wake(n.p)
	n.failLinks(transport.CodeFenced, func(l *link) bool { return l.peer.Incarnation == incarnation })
	if !n.p.step(failpoint.LostFenced) {
		return
	}
	n.publish(e)
}

// reset ends every connection of this node's applications: the others have
// removed it.
func (n *node) reset(e verdict.Event) {
	n.self.Incarnation = addr.Incarnation{}
	n.p.incarnationEnded = n.w.now
	n.changes.wake(n.p)
	n.failLinks(transport.CodeFenced, func(*link) bool { return true })
	for _, id := range sortedKeys(n.peers) {
		n.peers[id].lost = true
		n.peers[id].waiting.wake(n.p)
	}
	clear(n.peers)
	n.publish(e)
}

func (n *node) failLinks(code uint64, which func(*link) bool) {
	for _, l := range n.links {
		if which(l) {
			l.fail(code, "fenced")
		}
	}
}

// publish hands an event to every session.
func (n *node) publish(e verdict.Event) {
	for _, s := range n.sessions {
		s.publish(e)
	}
}

// revalidate drops the confirmations of all links.
func (n *node) revalidate() {
	for _, l := range n.links {
		l.keepalive.Doubt(n.w.now)
	}
}

// live returns the state of a live peer.
func (n *node) live(id addr.NodeID) (*peerState, error) {
	if n.self.Incarnation.Generation == 0 {
		return nil, status.NoDevice
	}
	p := n.peers[id]
	if p == nil {
		return nil, status.NoDevice
	}
	return p, nil
}

// report passes evidence about an incarnation to membership.
func (n *node) report(incarnation addr.Incarnation, e verdict.Evidence) {
	n.p.hand(func() { n.p.agent.feedMember(verdict.Link{Incarnation: incarnation, Evidence: e}) })
}

// ping measures whether a node answers over its link, dialing it first if
// there is none.
func (n *node) ping(id addr.NodeID, answer func(reached bool)) {
	n.linkTo(id, func() bool { return false }, func(l *link, err error) {
		if err != nil {
			answer(false)
			return
		}
		l.pings[l.sendKeepalive()] = func() { answer(true) }
		l.onDown = append(l.onDown, func() { answer(false) })
	})
}
