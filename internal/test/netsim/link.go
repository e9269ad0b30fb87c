package netsim

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// reorderSpan bounds how long a reordered packet is held back, beyond the
	// link's own delay and jitter.
	reorderSpan = 5 * time.Millisecond

	// retransmitDelay is the delay that a lost segment costs a stream: the minimal
	// retransmission timeout of Linux.
	retransmitDelay = 200 * time.Millisecond

	// rateQueue bounds the packets that wait for their turn, in bytes.
	rateQueue = 128 << 10

	// maxSegment is the most that a stream sends in one turn, in bytes.
	maxSegment = 1460
)

// A link draws the decisions of packets and segments from one host to another. It is
// guarded by the network's lock.
type link struct {
	rng  *rand.Rand
	free time.Time // when the last byte sent so far has had its turn, under Rules.Rate
}

func newLink(seed uint64, p pair) *link {
	h := fnv.New64a()
	h.Write([]byte(p.from + ">" + p.to))
	return &link{rng: rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// A decision is the outcome of sending one packet: the delays of its copies.
type decision struct {
	copies    [2]time.Duration
	n         int // 0: lost
	reordered bool
	corrupted bool
	bit       uint32 // the changed bit, modulo the number of bits
}

// packet draws the decision of one packet under r.
func (l *link) packet(r Rules) decision {
	var f decision
	if l.happens(r.Loss) {
		return f
	}
	f.n = 1
	if l.happens(r.Duplicate) {
		f.n = 2
	}
	for i := range f.n {
		f.copies[i] = l.delay(r)
	}
	if l.happens(r.Reorder) {
		f.reordered = true
		f.copies[0] += 1 + time.Duration(l.rng.Int64N(int64(reorderSpan)))
	}
	if l.happens(r.Corrupt) {
		f.corrupted, f.bit = true, l.rng.Uint32()
	}
	return f
}

// spoil changes the bit of p that the decision names.
func (f decision) spoil(p []byte) {
	if f.corrupted && len(p) > 0 {
		bit := int(f.bit) % (8 * len(p))
		p[bit/8] ^= 1 << (bit % 8)
	}
}

// turn returns when n bytes that are sent at now have left, under r. It reports false
// if more than queued bytes would wait before them; 0 is no bound.
func (l *link) turn(r Rules, n, queued int, now time.Time) (time.Time, bool) {
	if r.Rate <= 0 {
		return now, true
	}
	lasts := func(n int) time.Duration { return time.Duration(n) * time.Second / time.Duration(r.Rate) }
	if l.free.Before(now) {
		l.free = now
	}
	if queued > 0 && l.free.Sub(now) > lasts(queued) {
		return now, false
	}
	l.free = l.free.Add(lasts(n))
	return l.free, true
}

// segment draws the delay of one stream segment under r.
func (l *link) segment(r Rules) time.Duration {
	d := l.delay(r)
	for tries := 0; tries < 8 && l.happens(r.Loss); tries++ {
		d += retransmitDelay
	}
	return d
}

// delay draws a time in flight.
func (l *link) delay(r Rules) time.Duration {
	if r.Jitter <= 0 {
		return r.Delay
	}
	return r.Delay + time.Duration(l.rng.Int64N(int64(r.Jitter)))
}

// happens draws an event of probability p. Impossible events draw nothing, so
// that a rule that is off does not shift the others.
func (l *link) happens(p float64) bool {
	return p > 0 && l.rng.Float64() < p
}
