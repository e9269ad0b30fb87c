package faults

import (
	"math"
	"time"
)

// A Decision is what happens to one packet, or one piece of a stream.
type Decision struct {
	Drop  bool          // it vanishes; nothing below matters then
	Delay time.Duration // until it may go on

	Twice bool          // a copy of it goes on too
	Later time.Duration // the delay of the copy

	// Corrupt: the byte at At, taken modulo the length, is to be
	// changed by exclusive or with Mask, which is not zero.
	Corrupt bool
	At      uint32
	Mask    byte

	// Effects are the faults that did this.
	Effects Effects
}

// Effects is the set of faults that a decision applies.
type Effects uint16

// The effects.
const (
	Dropped    Effects = 1 << iota // by Drop
	Stopped                        // dropped by Cut, HalfOpen or BlockUDP
	Oversize                       // dropped by MTU
	Overflowed                     // dropped by Rate: its buffer was full
	Delayed                        // by Delay or Jitter
	Duplicated
	Reordered
	Corrupted
	Limited // waited for Rate
	Held    // waits for the end of Hold
)

// A Seen is a rule and a packet's place among those that the rule has seen.
type Seen struct {
	Rule *Rule
	Seed uint64        // of the rule, not zero
	N    uint64        // number of the packet among those of its Way
	Age  time.Duration // of the rule
	// Meter is the state of the rule's Rate on the Way, nil without one. It is
	// the only thing that deciding changes.
	Meter *Meter
}

// Then returns the decision about a packet to which first f and then g applies.
func (f Decision) Then(g Decision) Decision {
	f.Effects |= g.Effects
	if f.Drop || g.Drop {
		return Decision{Drop: true, Effects: f.Effects}
	}
	if g.Twice && !f.Twice {
		f.Twice, f.Later = true, f.Delay+g.Later
	} else {
		f.Later += g.Delay
	}
	f.Delay += g.Delay
	if g.Corrupt {
		f.Corrupt, f.At, f.Mask = true, g.At, g.Mask
	}
	return f
}

// purposes of the random numbers of one packet. Each is drawn by itself, so that
// a fault that is off does not shift the others.
const (
	forDrop = iota
	forDuplicate
	forReorder
	forCorrupt
	forJitter
	forCopy
	forSpan
	forByte
	forRetry // and the ones after it
)

// Decide returns the rule's decision about one packet or piece.
func (s *Seen) Decide(w Way, size int) Decision {
	acts, next := s.Rule.Acts(s.Age)
	if !acts {
		return Decision{}
	}
	if w.Carrier == Stream {
		return s.piece(w, size)
	}
	return s.packet(w, size, next)
}

func (s *Seen) packet(w Way, size int, next time.Duration) Decision {
	r, d := s.Rule, draws{s.Seed, w, s.N}
	switch {
	case r.Cut, r.HalfOpen, r.BlockUDP:
		return Decision{Drop: true, Effects: Stopped}
	case r.MTU > 0 && size > r.MTU:
		return Decision{Drop: true, Effects: Oversize}
	case d.happens(forDrop, r.Drop):
		return Decision{Drop: true, Effects: Dropped}
	}
	var f Decision
	if r.Hold {
		f.Delay, f.Effects = next-s.Age, Held
	}
	if r.Rate > 0 {
		wait, room := s.Meter.Pass(s.Age, size, r.Rate, r.buffer())
		if !room {
			return Decision{Drop: true, Effects: Overflowed}
		}
		f.wait(wait, Limited)
	}
	f.wait(d.flight(forJitter, r), Delayed)
	if d.happens(forDuplicate, r.Duplicate) {
		f.Twice, f.Later = true, f.Delay-d.flight(forJitter, r)+d.flight(forCopy, r)
		f.Effects |= Duplicated
	}
	if d.happens(forReorder, r.Reorder) {
		f.wait(1+time.Duration(d.unit(forSpan)*float64(ReorderSpan-1)), Reordered)
	}
	if d.happens(forCorrupt, r.Corrupt) {
		f.corrupt(d.bits(forByte))
	}
	return f
}

func (f *Decision) wait(d time.Duration, why Effects) {
	if d > 0 {
		f.Delay += d
		f.Effects |= why
	}
}

func (f *Decision) corrupt(bits uint64) {
	f.Corrupt, f.At, f.Mask = true, uint32(bits>>8), byte(bits)|1
	f.Effects |= Corrupted
}

const (
	// Retransmit is the delay of a lost piece of a stream: the shortest time in which TCP sends
	// again.
	Retransmit = 200 * time.Millisecond
	// LinkRetransmit is that delay on a link between nodes, whose provider has set the kernel to
	// be quicker.
	LinkRetransmit = 50 * time.Millisecond
	// maxRetries bounds how often one piece is lost.
	maxRetries = 8
)

// piece is packet for a stream.
func (s *Seen) piece(w Way, size int) Decision {
	r, d := s.Rule, draws{s.Seed, w, s.N}
	var f Decision
	if r.Rate > 0 {
		wait, _ := s.Meter.Pass(s.Age, size, r.Rate, math.MaxInt64)
		f.wait(wait, Limited)
	}
	f.wait(d.flight(forJitter, r), Delayed)
	again := Retransmit
	if Link.Includes(w.On) {
		again = LinkRetransmit
	}
	for try := range maxRetries {
		lost, broken := d.happens(forRetry+2*try, r.Drop), d.happens(forRetry+2*try+1, r.Corrupt)
		if !lost && !broken {
			break
		}
		if lost {
			f.wait(again, Dropped)
		} else {
			f.wait(again, Corrupted)
		}
	}
	if d.happens(forReorder, r.Reorder) {
		f.wait(1+time.Duration(d.unit(forSpan)*float64(ReorderSpan-1)), Reordered)
	}
	return f
}

func (r *Rule) buffer() int64 {
	if r.Buffer == 0 {
		return DefaultBuffer
	}
	return int64(r.Buffer)
}

// A Meter is the queue in front of a line of limited rate. The zero Meter is
// empty.
type Meter struct {
	free time.Duration // when the line has sent all that it was given
}

// Pass queues size bytes at now, which never goes back. It returns how long they
// take to pass, or false if more than buffer bytes would then wait.
func (m *Meter) Pass(now time.Duration, size int, rate Bytes, buffer int64) (wait time.Duration, room bool) {
	begin := max(m.free, now)
	queued := int64(float64(begin-now) / float64(time.Second) * float64(rate))
	if queued > buffer-int64(size) && begin > now {
		return 0, false
	}
	m.free = begin + time.Duration(float64(size)/float64(rate)*float64(time.Second))
	return m.free - now, true
}

// draws are the random numbers of one packet: functions of their purpose.
type draws struct {
	seed uint64
	way  Way
	n    uint64
}

// bits returns 64 random bits.
func (d draws) bits(purpose int) uint64 {
	h := mix(d.seed + 0x9e3779b97f4a7c15)
	h = mix(h ^ uint64(d.way.From)<<32 ^ uint64(d.way.To)<<16 ^ uint64(d.way.Carrier)<<8 ^ uint64(d.way.On.number()))
	h = mix(h + d.n)
	return mix(h ^ uint64(purpose)*0xd1342543de82ef95)
}

// mix is the finisher of splitmix64: each bit of its result depends on all of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// number is t's place in Planes, part of the schedule: never change the order.
func (t Traffic) number() int {
	for i, u := range Planes {
		if t == u {
			return i
		}
	}
	return len(Planes)
}

// unit returns a random number from 0 to 1, 1 excluded.
func (d draws) unit(purpose int) float64 { return float64(d.bits(purpose)>>11) / (1 << 53) }

func (d draws) happens(purpose int, p Probability) bool {
	return p > 0 && d.unit(purpose) < float64(p)
}

// flight returns Delay and a share of Jitter.
func (d draws) flight(purpose int, r *Rule) time.Duration {
	if r.Jitter == 0 {
		return time.Duration(r.Delay)
	}
	share := d.unit(purpose)
	switch r.Shape {
	case Normal:
		angle := d.unit(purpose + 1000)
		share = 0.5 + math.Sqrt(-2*math.Log(1-share))*math.Cos(2*math.Pi*angle)/6
	case Exponential:
		share = -math.Log(1-share) / 4
	}
	return time.Duration(r.Delay) + time.Duration(min(max(share, 0), 1)*float64(r.Jitter))
}
