// Package netsim is a network in memory for tests: packets and TCP-like
// streams between hosts, with delay, loss, duplicates, reordering, partitions
// and crashes, decided by a seed.
//
// It starts no goroutine. Data under way is in the queue of its receiver
// with the time at which it becomes visible; the receiver sleeps until then.
// Everything therefore runs in a testing/synctest bubble, on virtual time.
package netsim

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// Rules are the faults on the way from one host to another. The zero Rules
// deliver all data, at once and in order.
type Rules struct {
	// Delay is the time in flight; Jitter adds a uniform share of itself.
	// Packets overtake each other within the jitter, streams stay in order.
	Delay, Jitter time.Duration

	// Loss, Duplicate and Reorder are the probabilities, 0 to 1, that a packet
	// vanishes, arrives twice, or is held back by up to reorderSpan. A stream
	// loses nothing: there Loss costs retransmitDelay each time.
	Loss, Duplicate, Reorder float64

	// Corrupt is the probability that one bit of a packet is changed on its way.
	// Streams are spared: TCP would lose the segment.
	Corrupt float64

	// Rate is how many bytes a second pass, 0 for no bound. Data sent faster waits
	// its turn, of packets at most rateQueue bytes: the rest is dropped.
	Rate int

	// Cut stops everything: packets vanish, streams stall without an end,
	// dials hang.
	Cut bool
}

// Counters count packets since New. Each packet sent is delivered or counted
// under one reason of its loss; Duplicated ones are delivered twice.
type Counters struct {
	Sent       uint64 // handed to WriteTo
	Lost       uint64 // dropped by Rules.Loss
	Cut        uint64 // dropped by Rules.Cut or a partition
	NoReceiver uint64 // no receiver at the address
	Overflow   uint64 // the receiver's queue was full, or that of Rules.Rate
	Duplicated uint64 // sent twice by Rules.Duplicate
	Reordered  uint64 // held back by Rules.Reorder
	Corrupted  uint64 // changed by Rules.Corrupt
}

// A Network connects hosts, each named by its IP address. A host exists as
// soon as something listens or dials there. All methods may be called from any
// goroutine.
type Network struct {
	seed uint64

	mu        sync.Mutex // guards everything below and every conn's state
	closed    bool
	defaults  Rules
	rules     map[pair]Rules
	links     map[pair]*link
	groups    map[string]int // host to its side of the partition, if it has one
	packets   map[netip.AddrPort]*PacketConn
	listeners map[netip.AddrPort]*Listener
	conns     map[*Conn]struct{}
	nextPort  map[netip.Addr]uint16
	capture   func(from, to string, data []byte)
	counters  Counters
	changed   wait.Broadcast // fires when rules or partitions change
}

// A pair is a directed pair of hosts.
type pair struct{ from, to string }

// New returns a network without hosts. All its random choices follow from
// seed and, per directed pair of hosts, from the order of sends there.
func New(seed uint64) *Network {
	return &Network{
		seed:      seed,
		rules:     make(map[pair]Rules),
		links:     make(map[pair]*link),
		groups:    make(map[string]int),
		packets:   make(map[netip.AddrPort]*PacketConn),
		listeners: make(map[netip.AddrPort]*Listener),
		conns:     make(map[*Conn]struct{}),
		nextPort:  make(map[netip.Addr]uint16),
	}
}

// SetDefaultRules sets the rules of every pair of two different hosts that
// SetRules did not name.
func (n *Network) SetDefaultRules(r Rules) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.defaults = r
	n.changed.Fire()
}

// SetRules sets the rules from one host to another, in this direction only.
// Data in flight keeps its time of arrival.
func (n *Network) SetRules(from, to string, r Rules) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[pair{from, to}] = r
	n.changed.Fire()
}

// Partition cuts every pair of hosts that are in different groups, in both
// directions. It replaces an earlier partition. Hosts in no group reach all.
func (n *Network) Partition(groups ...[]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.groups)
	for i, hosts := range groups {
		for _, h := range hosts {
			n.groups[h] = i
		}
	}
	n.changed.Fire()
}

// Heal ends the partition and clears Cut in all rules.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.groups)
	n.defaults.Cut = false
	for p, r := range n.rules {
		r.Cut = false
		n.rules[p] = r
	}
	n.changed.Fire()
}

// Crash kills everything on host, as the end of its process would: its
// listeners and conns close, the peers of its streams see a reset after the
// link's delay, packets to it vanish. The host may listen again at once. To
// lose a machine in silence, cut its links first.
func (n *Network) Crash(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, c := range n.packets {
		if at.Addr().String() == host {
			c.closeLocked()
		}
	}
	for at, l := range n.listeners {
		if at.Addr().String() == host {
			l.closeLocked()
		}
	}
	for c := range n.conns {
		if c.out.from == host {
			c.abortLocked()
		}
	}
}

// Close crashes every host and refuses new ones.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, c := range n.packets {
		c.closeLocked()
	}
	for _, l := range n.listeners {
		l.closeLocked()
	}
	for c := range n.conns {
		c.abortLocked()
	}
	n.changed.Fire()
	return nil
}

// Counters returns the counts so far.
func (n *Network) Counters() Counters {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counters
}

// Capture calls f with all packets and stream data that are sent from now on,
// including those that the network then drops. The addresses are "ip:port"; data is
// valid during the call only. f runs on the sender's goroutine, several may call it
// at once. Nil ends the capture.
func (n *Network) Capture(f func(from, to string, data []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.capture = f
}

// captured calls the capture function, if there is one.
func (n *Network) captured(from, to netip.AddrPort, data []byte) {
	n.mu.Lock()
	f := n.capture
	n.mu.Unlock()
	if f != nil {
		f(from.String(), to.String(), data)
	}
}

// rulesFor returns the rules of p as they are now, partition included.
// n.mu is held.
func (n *Network) rulesFor(p pair) Rules {
	r, ok := n.rules[p]
	if !ok && p.from != p.to {
		r = n.defaults
	}
	from, ok1 := n.groups[p.from]
	to, ok2 := n.groups[p.to]
	if ok1 && ok2 && from != to {
		r.Cut = true
	}
	return r
}

// linkFor returns the seeded link of p. n.mu is held.
func (n *Network) linkFor(p pair) *link {
	l := n.links[p]
	if l == nil {
		l = newLink(n.seed, p)
		n.links[p] = l
	}
	return l
}

// freePort returns a port of host that is not taken. n.mu is held.
func (n *Network) freePort(host netip.Addr, taken func(netip.AddrPort) bool) (netip.AddrPort, error) {
	const first, count = 49152, 16384 // the dynamic ports of RFC 6335
	for range count {
		offset := n.nextPort[host] % count
		n.nextPort[host] = offset + 1
		at := netip.AddrPortFrom(host, first+offset)
		if !taken(at) {
			return at, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("netsim: no free port on %v", host)
}
