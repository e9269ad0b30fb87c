package inject

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
)

// A peer is a stream as the Plane sees it: the possible peers and the traffic.
type peer struct {
	layer *Layer
	below bool // rules on Link and All are enforced on the packets below
	peers func() []addr.NodeID
	on    atomic.Int32 // index in faults.Planes
}

// peerAt returns the peer of a stream to an address.
func (l *Layer) peerAt(address string, on faults.Traffic) *peer {
	p := &peer{layer: l, peers: func() []addr.NodeID { return []addr.NodeID{l.plane.Names.Place(address)} }}
	p.setTraffic(on)
	return p
}

func (p *peer) setTraffic(t faults.Traffic) {
	p.on.Store(int32(slices.Index(faults.Planes, t)))
}

func (p *peer) idle() bool { return p.layer.plane.Idle() }

func (p *peer) meeting(peer addr.NodeID, sending bool) faults.Meeting {
	return faults.Meeting{Peer: peer, On: faults.Planes[p.on.Load()], Carrier: faults.Stream, Sending: sending, Below: p.below}
}

// gate returns the decision about the stream, which without rules forbids nothing. Where several nodes may be at the other end, a stream
// that is forbidden to one of them is forbidden.
func (p *peer) gate(sending, count bool) (all faults.Gate) {
	if p.idle() {
		return all
	}
	for _, peer := range p.peers() {
		g := p.layer.plane.Gate(p.meeting(peer, sending), count)
		all.Stopped = all.Stopped || g.Stopped
		all.Refused = all.Refused || g.Refused
		all.Reset = all.Reset || g.Reset
	}
	return all
}

// judge returns whether a piece of the stream has to wait: for a time, or until
// the gate opens.
func (p *peer) judge(sending bool, size int) (wait time.Duration, stopped bool) {
	if p.idle() {
		return 0, false
	}
	if peers := p.peers(); len(peers) == 1 {
		wait = p.layer.plane.Decide(p.meeting(peers[0], sending), size).Delay
	}
	return wait, p.gate(sending, true).Stopped
}
