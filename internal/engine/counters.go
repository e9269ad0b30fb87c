package engine

import (
	"cmp"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// Results of a connect, as Counters has them. The names are fixed: they are those of metrics.
const (
	ConnectQueued      = "queued"       // waits to be accepted
	ConnectOK          = "ok"           // is connected
	ConnectNoListener  = "no_listener"  // the port has no listener
	ConnectBacklogFull = "backlog_full" // the listener's queue is full
	ConnectRule        = "access_rule"  // refused by the node's rules or the listener's list
	ConnectRefused     = "refused"      // by the peer's node, or not accepted in time
	ConnectNoDevice    = "no_such_node" // the node is not there, or cannot be reached
	ConnectOther       = "other"
)

// Causes of a lost connection, as Counters has them.
const (
	ResetNodeRemoved = "node_removed"
	ResetLinkSilent  = "link_silent"
	ResetNodeStopped = "node_stopped"
	ResetApplication = "application" // the peer's application died, detached, or gave it up
	ResetProtocol    = "protocol"
	ResetPath        = "path"
	ResetOther       = "other"
)

// Counters count the events at a node since its start.
type Counters struct {
	Incoming map[string]uint64 // connects of peers, by result
	Outgoing map[string]uint64 // connects of this node's applications, by result
	Resets   map[string]uint64 // lost connections, by cause

	RoundTrips  Histogram // of heartbeats, over all links
	LossToError Histogram // from a peer's last sign of life until all its connections had their error
	LinksBegun  uint64
	LinksEnded  uint64

	RMA    []RMACount
	Fences map[string]uint64 // that this node's applications have asked it for, by kind
	// MessagePaths and RMAPaths are the bytes that sockets between applications, and
	// between applications and peers' nodes, have carried.
	MessagePaths, RMAPaths Carried
}

// A Histogram counts durations. Buckets[i] are those of at most Bounds[i] that are in no
// smaller bucket; the longer ones are in Count alone.
type Histogram struct {
	Bounds  []time.Duration
	Buckets []uint64
	Count   uint64
	Sum     time.Duration
}

// The bounds of histograms: round trips in one machine room and between continents, and
// losses that the kernel reports at once or that a silence of seconds shows.
var (
	roundTripBounds = []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second}
	lossBounds = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 1500 * time.Millisecond, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}
)

func newHistogram(bounds []time.Duration) Histogram {
	return Histogram{Bounds: bounds, Buckets: make([]uint64, len(bounds))}
}

func (h *Histogram) observe(d time.Duration) {
	h.Count++
	h.Sum += d
	for i, b := range h.Bounds {
		if d <= b {
			h.Buckets[i]++
			return
		}
	}
}

func (h Histogram) clone() Histogram {
	h.Buckets = append([]uint64(nil), h.Buckets...)
	return h
}

// counters are a node's Counters. Each is counted at an event or an operation of RMA, not
// per message.
type counters struct {
	mu sync.Mutex // guards c; innermost
	c  Counters

	operations
}

func newCounters() counters {
	return counters{c: Counters{
		Incoming: zeros(ConnectQueued, ConnectNoListener, ConnectBacklogFull, ConnectRule),
		Outgoing: zeros(ConnectOK, ConnectBacklogFull, ConnectRefused, ConnectNoDevice, ConnectOther),
		Resets:   zeros(ResetNodeRemoved, ResetLinkSilent, ResetNodeStopped, ResetApplication, ResetProtocol, ResetPath, ResetOther),

		RoundTrips: newHistogram(roundTripBounds), LossToError: newHistogram(lossBounds),
	}}
}

// zeros returns a count of 0 for each name: a rate needs the value before the first event.
func zeros(names ...string) map[string]uint64 {
	m := make(map[string]uint64, len(names))
	for _, n := range names {
		m[n] = 0
	}
	return m
}

// Counters returns a copy of the counters.
func (n *Node) Counters() Counters {
	n.counters.mu.Lock()
	c := n.counters.c
	c.Incoming, c.Outgoing, c.Resets = maps.Clone(c.Incoming), maps.Clone(c.Outgoing), maps.Clone(c.Resets)
	c.RoundTrips, c.LossToError = c.RoundTrips.clone(), c.LossToError.clone()
	n.counters.mu.Unlock()
	n.countOperations(&c)
	return c
}

// count changes the counters.
func (c *counters) count(change func(*Counters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.c)
}

func (c *counters) incoming(result string) { c.count(func(c *Counters) { c.Incoming[result]++ }) }
func (c *counters) reset(cause string) {
	c.count(func(c *Counters) { c.Resets[resetKind(cause)]++ })
}

// outgoing counts a connect that ended with err.
func (c *counters) outgoing(err error) {
	c.count(func(c *Counters) { c.Outgoing[connectResult(err)]++ })
}

// incomingResult returns the result of a connect that was answered with code.
func incomingResult(code status.Code, admitted bool) string {
	switch {
	case !admitted:
		return ConnectRule
	case code == status.OK:
		return ConnectQueued
	case code == status.Busy:
		return ConnectBacklogFull
	}
	return ConnectNoListener
}

// causeNodeRemoved begins the cause of connections to an incarnation that has ended.
const causeNodeRemoved = "node removed: "

// resetKinds are the names of the causes that are counted apart.
var resetKinds = map[attach.Loss]string{
	attach.LossNodeRemoved: ResetNodeRemoved, attach.LossLinkSilent: ResetLinkSilent, attach.LossNodeStopped: ResetNodeStopped,
	attach.LossPeerDied: ResetApplication, attach.LossDetached: ResetApplication, attach.LossAborted: ResetApplication,
	attach.LossProtocol: ResetProtocol, attach.LossPathSilent: ResetPath,
}

// resetKind returns which of the fixed causes a cause in words is.
func resetKind(cause string) string {
	return cmp.Or(resetKinds[attach.LossOf(cause)], ResetOther)
}

// connectResult returns the result of a connect that ended with err.
func connectResult(err error) string {
	switch {
	case err == nil:
		return ConnectOK
	case errors.Is(err, status.Busy):
		return ConnectBacklogFull
	case errors.Is(err, status.Refused):
		return ConnectRefused
	case errors.Is(err, status.NoDevice):
		return ConnectNoDevice
	}
	return ConnectOther
}
