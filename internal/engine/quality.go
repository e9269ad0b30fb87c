package engine

import (
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A quality is a link's measurements of its path through the network. Guarded by link.mu.
type quality struct {
	arrived arrivals
	trips   roundTrips
	loss    loss
}

// roundTrips are those of a link's heartbeats, smoothed as TCP does (RFC 6298).
type roundTrips struct{ smoothed, deviation, shortest time.Duration }

func (t *roundTrips) add(rtt time.Duration) {
	rtt = max(rtt, 1) // 0 is none
	if t.smoothed == 0 {
		t.smoothed, t.deviation, t.shortest = rtt, rtt/2, rtt
		return
	}
	t.deviation += ((rtt - t.smoothed).Abs() - t.deviation) / 4
	t.smoothed += (rtt - t.smoothed) / 8
	t.shortest = min(t.shortest, rtt)
}

// lossEvery is the time between two looks at how many packets a link has lost.
const lossEvery = 5 * time.Second

// A loss counts packets lost since the look before the last one: over 5 to 10 s.
type loss struct {
	before, last transport.Traffic
	at           time.Duration // of last
}

// due reports whether it is time for another look.
func (l *loss) due(now time.Duration) bool { return now-l.at >= lossEvery }

func (l *loss) look(t transport.Traffic, now time.Duration) { l.before, l.last, l.at = l.last, t, now }

// percent returns how many of the packets that were sent lately were lost, as of t.
func (l *loss) percent(t transport.Traffic) float64 {
	sent := t.Packets - l.before.Packets
	if sent == 0 || t.Packets < l.before.Packets || t.Lost < l.before.Lost {
		return 0
	}
	return min(100*float64(t.Lost-l.before.Lost)/float64(sent), 100)
}

// countEnd counts the end of a link to another node that had so many connections, which
// have their error now.
func (l *link) countEnd(conns int) {
	if l.otherEnd != nil {
		return
	}
	l.mu.Lock()
	silent := l.keepalive.Silent(l.n.now())
	l.mu.Unlock()
	kind := resetKind(l.why())
	l.n.counters.count(func(c *Counters) {
		c.LinksEnded++
		if conns > 0 && (kind == ResetNodeRemoved || kind == ResetLinkSilent) {
			c.LossToError.observe(silent)
		}
	})
}
