package sim

import (
	"math/rand/v2"
	"time"
)

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
	kept   [tailPackets]keptPacket
	oldest int
	asking bool // a datagram waits for an acknowledgement
	before int  // the value of acks then
	draws  *rand.Rand
}

type keptPacket struct {
	size    int // 0: none
	arrived func()
}

// put sends a packet and keeps it for the tail. Long ones are written in
// batches, which are not kept, unless they are probes.
func (e *quicEnd) put(size int, probe bool, arrived func()) {
	if size <= wholePacket || probe {
		e.kept[e.oldest] = keptPacket{min(size, packetLen), arrived}
		e.oldest = (e.oldest + 1) % tailPackets
	}
	e.wire(size, arrived)
}

// resend sends the tail again unchanged, the oldest packet first: the peer drops
// duplicates.
func (e *quicEnd) resend() {
	back := func(i int) keptPacket { return e.kept[(e.oldest-1-i+tailPackets)%tailPackets] }
	n := 0
	for bytes := 0; n < tailPackets && back(n).size > 0; n++ {
		if bytes += back(n).size; bytes > tailBytes {
			break
		}
	}
	for i := n - 1; i >= 0; i-- {
		e.wire(back(i).size, back(i).arrived)
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
	if e.draws == nil {
		e.draws = seeded(e.s.w.seed, "patience", e.p.at.index, e.p.at.starts, e.peer().p.at.index)
	}
	return between(e.draws, minPatience, maxPatience) + 2*e.least
}
