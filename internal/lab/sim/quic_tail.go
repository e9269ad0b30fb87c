package sim

import "time"

// Our provider extends quic-go (internal/transport/quic, tail.go and watch.go, which
// define these constants): it sends the last packets of a session again while a
// datagram finds no acknowledgement, and behind the end of one.
const (
	tailPackets = 20
	tailBytes   = 4 << 10
	wholePacket = 1500
	minPatience = 100 * time.Millisecond
	maxPatience = 150 * time.Millisecond
)

// endAgain are the times after the end of a session at which its tail goes again.
var endAgain = [...]time.Duration{20 * time.Millisecond, 120 * time.Millisecond, 420 * time.Millisecond}

// A tail is the last packets of one end of a session, acknowledgements and its close
// among them.
type tail struct {
	kept   []keptPacket // the oldest first
	asking bool         // a datagram waits for an acknowledgement
	before int          // the value of acks then
}

type keptPacket struct {
	size    int
	arrived func()
}

// put sends a packet and keeps it for the tail. Long ones are written in
// batches, which are not kept, unless they are probes.
func (e *quicEnd) put(size int, probe bool, arrived func()) {
	if size <= wholePacket || probe {
		e.kept = append(e.kept[max(len(e.kept)-tailPackets+1, 0):], keptPacket{min(size, packetLen), arrived})
	}
	e.wire(size, arrived)
}

// resend sends the tail again unchanged, the oldest packet first: the peer drops
// duplicates.
func (e *quicEnd) resend() {
	from := len(e.kept)
	for bytes := 0; from > 0 && bytes+e.kept[from-1].size <= tailBytes; from-- {
		bytes += e.kept[from-1].size
	}
	for _, p := range e.kept[from:] {
		e.wire(p.size, p.arrived)
	}
}

// ask notes that a datagram is about to be sent, which the peer acknowledges at
// once if it arrives.
func (e *quicEnd) ask() {
	if !e.asking {
		e.asking, e.before = true, e.acks
		e.p.after(e.patience(), e.watch)
	}
}

// watch sends the tail until something is acknowledged.
func (e *quicEnd) watch() {
	if e.asking = e.acks == e.before && !e.over; e.asking {
		e.resend()
		e.p.after(e.patience(), e.watch)
	}
}

// repeatEnd sends the tail again behind a session that was closed here.
func (e *quicEnd) repeatEnd() {
	for _, d := range endAgain {
		e.p.after(d, e.resend)
	}
}

// patience draws how long an acknowledgement is waited for.
func (e *quicEnd) patience() time.Duration {
	return between(e.p.rng, minPatience, maxPatience) + 2*e.least
}
