// Package engine runs the engine: links to the other nodes, endpoints of the applications, and the
// goroutines that move bytes between them. The decisions are in package core; the engine has the
// clock, the locks and the I/O. A Node meets applications as attach.Session and membership as
// NodeUp and NodeLost.
//
// Locks are taken in this order: endpoint.mu (a listener's before that of an endpoint it accepts),
// conn.mu, link.mu, Node.mu; those of inbox, outbox, nodePaths, requestTable, eventQueue,
// attach.Notes and group are innermost. None is held across I/O that blocks or a callback.
package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/portmap"
)

// Evidence is a link's report about the incarnation at its other end. The numbers
// are those of membership's evidence.
type Evidence uint8

const (
	LinkAlive   Evidence = iota + 1 // it answered
	LinkSilent                      // nothing came for the silence bound
	LinkReset                       // a stateless reset: the process lost its state
	LinkFenced                      // it reports that our incarnation, or its own that we asked for, is over
	LinkRefused                     // it could not be dialed
)

// A Config configures a Node. A zero field means its default. It must not be
// changed after it has been passed to Start.
type Config struct {
	// Providers carry the links, the preferred one first. The node closes
	// them. Without providers only loopback works.
	Providers []transport.Provider

	// Log gets the engine's messages, with the fields peer and conn.
	Log zerolog.Logger
	// Record gets the events of links, paths and connections. Nil: none is kept.
	Record *flight.Recorder

	// ConnectTimeout is how long Connect waits to be accepted; default 10 s.
	ConnectTimeout time.Duration
	// DialTimeout bounds establishing a link, over all providers and addresses: a connect fails
	// within this time if the node cannot be reached. Default 2 s, or GiveUp if that is longer.
	DialTimeout time.Duration
	// Heartbeat is the time between two heartbeats on a link, at most 2/5 of Fence; default 250 ms.
	Heartbeat time.Duration
	// Fence is how long a confirmation of both incarnations lasts before operations
	// of the peer wait for a new one; default 1 s.
	Fence time.Duration
	// SilenceBound is the silence on a link that is reported as evidence; default 1.2 s.
	SilenceBound time.Duration
	// GiveUp is the silence after which a link is given up, longer than
	// SilenceBound; default twice that.
	GiveUp time.Duration

	// Access decides which callers may connect to a port, and bind it; nil: no limits. See
	// [Node.SetAccess].
	Access *access.Policy
	// Refused gets every connect and bind that the access rules have refused,
	// however many there are. It must not block. Nil: none is reported.
	Refused func(Refusal)

	// MessageWindow is how many message bytes a connection keeps for a receiver that does not read,
	// in bytes, rounded up to a power of two; default [MessageWindow]. See ConnMemory.
	MessageWindow int
	// Limits bound operations, windows and requests of a connection.
	Limits core.Limits
	// MaxEndpoints bounds the endpoints of one session; default 16384, as many connections as a
	// link has streams for. Applications that attach have a smaller quota of their own
	// (server.Limits): their endpoints cost this process a socket each.
	MaxEndpoints int
	// MaxConns bounds the connections of one link; default 16000. Each takes two
	// streams in each direction once it is used, of which the providers have 32768
	// by default: one more would connect, and then wait for a stream to send on.
	MaxConns int
	// ConnMemory returns how many bytes the connections of the node may take in all, each at its
	// maximum: see costOf. While half of them are free MessageWindow holds; then connections get
	// less, and in the end status.NoMemory. It is called for each connection. Nil: no bound.
	ConnMemory func() int64

	// Paths makes the sockets of paths; nil: connections stay on their links.
	Paths *PathNetwork

	// ProveLease returns why the signed lease behind a HELLO does not prove that peer
	// has that incarnation; proved is the identity in its session's certificate. It may
	// take a moment. Nil: every lease is accepted, as in tests without leases.
	ProveLease func(lease []byte, peer Peer, proved transport.Identity) error
	// Now is the wall clock, for the ends of certificates. Nil: the machine's.
	Now func() time.Time

	// Report gets evidence about incarnations. It must not block.
	Report func(addr.Incarnation, Evidence)

	// ServesAnew is called after each change of [Node.Serves]. It must not block, nor
	// call a method about an endpoint. Nil: no notification.
	ServesAnew func()

	// Faults are those of this node; nil: none, for good.
	Faults *failpoint.Node
}

// The defaults of Config.MessageWindow, in bytes, and Config.MaxEndpoints.
const (
	MessageWindow = 512 << 10
	MaxEndpoints  = 16384
)

func (c *Config) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.ConnectTimeout, 10*time.Second)
	set(&c.Heartbeat, 250*time.Millisecond)
	set(&c.Fence, time.Second)
	// One heartbeat may be lost before operations have to wait.
	c.Heartbeat = min(c.Heartbeat, 2*c.Fence/5)
	set(&c.SilenceBound, 1200*time.Millisecond)
	set(&c.GiveUp, 2*c.SilenceBound)
	set(&c.DialTimeout, max(2*time.Second, c.GiveUp))
	if c.MessageWindow == 0 {
		c.MessageWindow = MessageWindow
	}
	window := windowUnit
	for window < c.MessageWindow {
		window *= 2
	}
	c.MessageWindow = window
	if c.MaxEndpoints == 0 {
		c.MaxEndpoints = MaxEndpoints
	}
	if c.MaxConns == 0 {
		c.MaxConns = 16000
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Self is this node's place in the cluster and its identity.
type Self struct {
	attach.Self
	// Labels are those that the host has given this node. They must not be changed.
	Labels []string

	UUID  addr.UUID
	Epoch uint64
	Term  uint64
	// Lease returns the signed lease that proves Incarnation, to be shown in each HELLO:
	// it changes with the host's term and authority. It may take a moment, and is
	// called with no lock held. Nil: there is none to show.
	Lease func() []byte
}

// A Peer is a live incarnation of another node.
type Peer struct {
	Incarnation addr.Incarnation
	UUID        addr.UUID
	Epoch       uint64
	Name        string
	Labels      []string // that the host has given it; must not be changed
	Addresses   []string // in the form that the providers dial
	Providers   []string // names of the providers that reach it; empty: not known
	// Until is when its newest certificate ends, by Config.Now; zero: not known.
	Until time.Time
}

// A Node is the engine of one node.
type Node struct {
	cfg   Config
	log   zerolog.Logger
	birth time.Time
	done  chan struct{} // closed by Close
	work  group

	budget   budget // of the connections
	access   admission
	counters counters

	reports nodeReports

	linked chan struct{} // capacity 1: there is a link to keep alive

	// Waiters to use again. They hold channels: a pool of the package would
	// carry those from one synctest bubble to another.
	waiters sync.Pool

	paths    nodePaths
	services namespace

	mu          sync.Mutex // guards the fields below
	closed      bool
	self        Self
	ports       *portmap.Table
	listeners   map[addr.Port]*endpoint
	peers       map[addr.NodeID]*peerState
	loop        *link              // to itself, the connectors' end; nil if there is none
	links       map[*link]struct{} // also those that have failed and are not quiet yet
	measurement measurement
	removing    map[addr.NodeID]chan struct{} // incarnations being removed; closed when that is done
	sessions    map[*session]struct{}
	changed     chan struct{} // closed and replaced when the node table changes
}

// nodeReports are the bounded log lines of a node. Safe for concurrent use.
type nodeReports struct {
	refusals *logbound.Summary // of links
	panics   *logbound.Summary // of goroutines that serve a peer
}

// A peerState is the node's state of one live peer. Guarded by Node.mu.
type peerState struct {
	Peer
	links   []*link       // that are up, the newest last; at most one over each provider
	dialing chan struct{} // closed when the attempt under way has ended; nil if none
	backAt  time.Duration // Node.now from which a preferred provider is tried again
	dialErr error         // of the last attempt
	lost    chan struct{} // closed when the incarnation is over
	ends    perMinute     // of links with it

	serves    []Named       // must not be changed
	roundTrip time.Duration // smoothed, of the link that measured it last; 0: not known

	// Sessions that the peer dialed and that are being answered. While there
	// are any, this node does not begin to dial.
	welcoming int
	welcomed  chan struct{} // closed when welcoming falls to 0; nil while it is
}

// Start starts the engine. It has no place in the cluster until SetSelf.
func Start(cfg Config) *Node {
	cfg.setDefaults()
	n := &Node{
		cfg: cfg, log: cfg.Log, birth: time.Now(), done: make(chan struct{}), linked: make(chan struct{}, 1),
		reports:   nodeReports{logbound.New(cfg.Log, "links were refused"), logbound.New(cfg.Log, "links ended with an internal error")},
		services:  namespace{own: make(map[string]*endpoint)},
		budget:    budget{limit: cfg.ConnMemory, users: make(map[uint32]int64)},
		ports:     portmap.New(),
		listeners: make(map[addr.Port]*endpoint),
		peers:     make(map[addr.NodeID]*peerState),
		links:     make(map[*link]struct{}),
		removing:  make(map[addr.NodeID]chan struct{}),
		sessions:  make(map[*session]struct{}),
		changed:   make(chan struct{}),
		counters:  newCounters(),
	}
	n.access.set(cfg.Access)
	n.work.run(n.keepAlive)
	for _, p := range cfg.Providers {
		n.work.run(func() { n.acceptLinks(p) })
	}
	return n
}

// now is the node's monotonic clock.
func (n *Node) now() time.Duration { return time.Since(n.birth) }

func (n *Node) report(incarnation addr.Incarnation, e Evidence) {
	if n.cfg.Report != nil {
		n.cfg.Report(incarnation, e)
	}
}

// Self returns the node's place in the cluster.
func (n *Node) Self() Self {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self
}

// SetSelf gives the node its incarnation. An incarnation other than the one before ends every
// connection.
func (n *Node) SetSelf(self Self) {
	n.mu.Lock()
	before := n.self.Incarnation
	n.self = self
	n.announceLocked()
	n.mu.Unlock()
	if before.Generation != 0 && before != self.Incarnation {
		n.failLinks(transport.CodeFenced, errors.New("this node has a new incarnation"), func(l *link) bool { return l.self == before })
	}
}

// announceLocked wakes goroutines that wait for a change of the node table. The caller holds mu.
func (n *Node) announceLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
	n.services.notes.Send()
}

// NodeUp makes an incarnation live: it can be connected to, and sessions see NodeAdded. An older
// incarnation of the same node must have been lost before; if it was not, NodeUp does that.
func (n *Node) NodeUp(p Peer) {
	for {
		n.mu.Lock()
		old, removing := n.peers[p.Incarnation.Node], n.removing[p.Incarnation.Node]
		switch {
		case removing != nil: // events of one node keep their order
			n.mu.Unlock()
			<-removing
			continue
		case old != nil && old.Incarnation == p.Incarnation:
			n.mu.Unlock()
			n.NodeUpdate(p)
			return
		case old != nil:
			n.mu.Unlock()
			n.NodeLost(old.Incarnation, "restarted")
			continue
		}
		n.peers[p.Incarnation.Node] = &peerState{Peer: p, lost: make(chan struct{})}
		n.announceLocked()
		// Under the lock, or a removal at the same moment could be reported first.
		n.publishLocked(attach.Event{Kind: attach.NodeAdded, Incarnation: p.Incarnation, Name: p.Name})
		n.mu.Unlock()
		return
	}
}

// NodeUpdate changes the addresses or the name of a live incarnation.
func (n *Node) NodeUpdate(p Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.peers[p.Incarnation.Node]; s != nil && s.Incarnation == p.Incarnation {
		s.Peer = p
		n.announceLocked()
	}
}

// NodeLost ends an incarnation. In this order: no new connection reaches it, its link is fenced,
// every operation and blocked call towards it ends, windows are released by the rules, and then
// sessions see NodeRemoved. NodeLost returns when all of this has happened, also where another call
// began it. An incarnation that is not live is ignored.
func (n *Node) NodeLost(incarnation addr.Incarnation, reason string) {
	n.mu.Lock()
	p := n.peers[incarnation.Node]
	if p == nil || p.Incarnation != incarnation {
		removing := n.removing[incarnation.Node]
		n.mu.Unlock()
		if removing != nil {
			<-removing
		}
		return
	}
	delete(n.peers, incarnation.Node)
	close(p.lost)
	n.announceLocked()
	done := make(chan struct{})
	n.removing[incarnation.Node] = done
	n.mu.Unlock()
	_ = n.cfg.Faults.Hit(failpoint.LostBeforeFence)
	n.failLinks(transport.CodeFenced, errors.New(causeNodeRemoved+reason),
		func(l *link) bool { return l.peer.Incarnation == incarnation && l.otherEnd == nil })
	n.paths.cut(incarnation)
	_ = n.cfg.Faults.Hit(failpoint.LostFenced)
	n.log.Debug().Stringer("peer", incarnation).Str("reason", reason).Msg("node removed")
	n.mu.Lock()
	n.publishLocked(attach.Event{Kind: attach.NodeRemoved, Incarnation: incarnation, Name: p.Name, Reason: reason})
	delete(n.removing, incarnation.Node)
	n.mu.Unlock()
	close(done)
}

// Retain ends the incarnations that are not among those: while this node had no incarnation of
// its own it got no notice of their end.
func (n *Node) Retain(incarnations []addr.Incarnation, reason string) {
	n.mu.Lock()
	var over []addr.Incarnation
	for _, p := range n.peers {
		if !slices.Contains(incarnations, p.Incarnation) {
			over = append(over, p.Incarnation)
		}
	}
	n.mu.Unlock()
	for _, incarnation := range over {
		n.NodeLost(incarnation, reason)
	}
}

// ResetSelf ends every connection of this node's applications: the others have
// removed it. The node has no incarnation until SetSelf; before that, NodeUp and Retain
// report the incarnations of that time.
func (n *Node) ResetSelf(reason string) {
	n.mu.Lock()
	n.self.Incarnation.Generation = 0
	n.announceLocked()
	n.mu.Unlock()
	n.failLinks(transport.CodeFenced, errors.New(reason), everyLink)
}

func everyLink(*link) bool { return true }

// failLinks fails the links that which chooses and waits until nothing of them runs any more.
func (n *Node) failLinks(code uint64, cause error, which func(*link) bool) {
	links := slices.DeleteFunc(n.allLinks(), func(l *link) bool { return !which(l) })
	for _, l := range links {
		l.fail(code, cause)
	}
	for _, l := range links {
		l.quiet()
	}
}

func (n *Node) allLinks() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.links))
}

// publishLocked hands an event to every session. The caller holds mu.
func (n *Node) publishLocked(ev attach.Event) {
	for s := range n.sessions {
		s.publish(ev)
	}
}

// Close ends everything at once and waits until nothing of the node is left.
// A second Close does nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.done)
	n.mu.Unlock()
	n.failLinks(transport.CodeLeaving, errors.New(attach.CauseStopped(n.Self().Incarnation.Node)), everyLink)
	n.closeSessions(context.Background())
	for _, p := range n.cfg.Providers {
		p.Close()
	}
	n.work.wait()
	n.reports.refusals.Close()
	n.reports.panics.Close()
	return nil
}

// live returns the state of a live peer. The caller holds mu.
func (n *Node) liveLocked(id addr.NodeID) (*peerState, error) {
	if n.self.Incarnation.Generation == 0 || n.closed {
		return nil, status.NoDevice
	}
	p := n.peers[id]
	if p == nil {
		return nil, status.NoDevice
	}
	return p, nil
}
