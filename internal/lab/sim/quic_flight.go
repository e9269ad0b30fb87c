package sim

import (
	"slices"
	"time"
)

// How quic-go recovers from losses (RFC 9002): a congestion window for the whole
// session, which only acknowledgements and probes pass when it is full, and a
// probe timeout that doubles, without a bound that a test would reach, until
// something is acknowledged. Heartbeats wait behind the window like all else.
const (
	firstWindow = 32 * packetLen
	leastWindow = 2 * packetLen
	mostWindow  = 10_000 * packetLen
	burst       = 3 * packetLen // so near to its window a sender counts as limited by it

	firstProbe  = 200 * time.Millisecond // before a round trip was measured
	ackDelay    = 25 * time.Millisecond  // that a peer may take, so probes wait for it
	granularity = time.Millisecond
	mostProbe   = time.Minute
	probes      = 2 // packets at each probe timeout
	overtaken   = 3 // packets acknowledged behind one that is lost then
	ackLen      = 40

	// maxDatagrams wait at most: 32 in quic-go, 64 in the provider, one between.
	maxDatagrams = 97
)

// A frame is a unit that has to arrive at the peer. Each travels in packets of its own,
// and as one packet whatever its length: a loss hits all of it. In the window it counts
// as long as it is.
type frame struct {
	size    int
	once    bool    // it is not sent again: a datagram
	arrived func()  // runs at the peer for each packet that carries it
	acked   func()  // nil, or runs here when the first of them is acknowledged
	stream  *stream // of a piece
	known   bool    // it was acknowledged
}

// unwanted reports whether the frame need not be sent any more.
func (f *frame) unwanted() bool { return f.known || f.stream != nil && f.stream.stopped }

// A packet is one that the peer acknowledges.
type packet struct {
	*frame
	number uint64
	sent   time.Duration
	flying bool // neither acknowledged nor given up
	got    bool // by the peer, which drops further copies
}

// A flight is the packets that one end has under way, and those that it has received.
type flight struct {
	again, queue []*frame // to be sent: those that were lost, and new ones
	datagrams    []*frame // which go first
	sending      bool     // advance is at work

	last     uint64    // number of the newest packet
	out      []*packet // by number; the first is flying
	bytes    int       // of those that are flying
	window   int       // for bytes
	slow     int       // the window below which it doubles in a round trip
	cutback  uint64    // the newest packet when the window was cut last
	largest  uint64    // the newest packet that was acknowledged
	sentLast time.Duration
	lossAt   time.Duration // when the oldest is given up; 0: at no certain time
	tries    int           // probe timeouts without an acknowledgement
	timer    time.Duration // when the next look is; 0: there is none
	acks     int           // acknowledgements of something new

	latest, smoothed, deviation, least time.Duration // round trips

	received  []*packet // packets that were received and whose acknowledgement has not arrived, in their order
	confirmed int       // packets before received
}

func newQUICEnd(s *quic, side int, p *proc) *quicEnd {
	return &quicEnd{s: s, side: side, p: p, flight: flight{window: firstWindow, slow: mostWindow}}
}

// enqueue sends a frame until it has arrived.
func (e *quicEnd) enqueue(f *frame) {
	if !e.over && !e.p.dead {
		e.queue = append(e.queue, f)
		e.advance()
	}
}

// control sends a control frame of a stream.
func (e *quicEnd) control(arrived func()) { e.enqueue(&frame{size: 40, arrived: arrived}) }

// advance sends as much as the window takes.
func (e *quicEnd) advance() {
	if e.sending {
		return // the call that is at work sends the new frames too
	}
	e.sending = true
	for e.bytes < e.window && !e.over {
		f := e.next()
		if f == nil {
			break
		}
		e.dispatch(f, false)
	}
	e.sending = false
	e.arm()
}

// next takes the frame that is to be sent next; nil: there is none.
func (e *quicEnd) next() *frame {
	for _, q := range []*[]*frame{&e.datagrams, &e.again, &e.queue} {
		for len(*q) > 0 {
			f := (*q)[0]
			if *q = (*q)[1:]; !f.unwanted() {
				return f
			}
		}
	}
	return nil
}

// dispatch sends a frame in a new packet.
func (e *quicEnd) dispatch(f *frame, probe bool) {
	e.last++
	p := &packet{frame: f, number: e.last, sent: e.s.w.now, flying: true}
	e.out = append(e.out, p)
	e.bytes += p.size
	e.sentLast = p.sent
	o := e.peer()
	e.put(p.size, probe, func() { o.receive(p) })
}

// receive takes a packet of the peer and acknowledges it, with all before it of
// which the peer may not know that they have arrived. An acknowledgement costs
// nothing of the window. A real one may wait for 25 ms.
func (e *quicEnd) receive(p *packet) {
	if p.got {
		return
	}
	p.got = true
	e.received = append(e.received, p)
	upTo, o := e.confirmed+len(e.received), e.peer()
	e.put(ackLen, false, func() { o.acknowledged(upTo) })
	p.arrived()
}

// acknowledged takes the peer's acknowledgement of so many packets.
func (e *quicEnd) acknowledged(upTo int) {
	o := e.peer()
	n := upTo - o.confirmed
	if n <= 0 {
		return // an old one
	}
	news := o.received[:n]
	o.received, o.confirmed = o.received[n:], upTo
	e.acks++
	e.measure(news)
	before := e.bytes
	for _, p := range news {
		if e.largest = max(e.largest, p.number); p.flying {
			e.land(p)
			e.grow(p, before)
		}
	}
	e.tries = 0
	e.findLost()
	for _, p := range news {
		if !p.known {
			if p.known = true; p.acked != nil && !e.over {
				p.acked()
			}
		}
	}
	if !e.over {
		e.advance()
	}
}

// measure takes the round trip of the newest packet, if no newer one has been
// acknowledged.
func (e *quicEnd) measure(news []*packet) {
	newest := slices.MaxFunc(news, func(a, b *packet) int { return int(a.number) - int(b.number) })
	rtt := e.s.w.now - newest.sent
	switch {
	case newest.number < e.largest:
	case e.smoothed == 0:
		e.latest, e.smoothed, e.deviation, e.least = rtt, rtt, rtt/2, rtt
	default:
		e.latest, e.least = rtt, min(rtt, e.least)
		e.deviation = (3*e.deviation + (e.smoothed - rtt).Abs()) / 4
		e.smoothed = (7*e.smoothed + rtt) / 8
	}
}

// land takes a packet out of the window.
func (e *quicEnd) land(p *packet) {
	p.flying = false
	e.bytes -= p.size
	for len(e.out) > 0 && !e.out[0].flying {
		e.out[0] = nil
		e.out = e.out[1:]
	}
}

// grow widens the window for a packet that has arrived, if the window limited the
// sender.
func (e *quicEnd) grow(p *packet, before int) {
	limited := before+burst >= e.window || e.window < e.slow && before > e.window/2
	switch {
	case !limited || p.number <= e.cutback:
	case e.window < e.slow:
		e.window = min(e.window+p.size, mostWindow)
	default:
		e.window = min(e.window+p.size*packetLen/e.window, mostWindow)
	}
}

// findLost gives up packets that later ones have overtaken.
func (e *quicEnd) findLost() {
	now, wait := e.s.w.now, max(max(e.latest, e.smoothed)*9/8, granularity)
	e.lossAt = 0
	if len(e.out) == 0 || e.out[0].number >= e.largest {
		return
	}
	for _, p := range slices.Clone(e.out) {
		switch {
		case p.number >= e.largest:
			return
		case !p.flying:
		case p.sent+wait <= now || p.number+overtaken <= e.largest:
			e.lose(p)
			if p.number > e.cutback { // once for all that was under way
				e.window = max(e.window*7/10, leastWindow)
				e.slow, e.cutback = e.window, e.last
			}
		case e.lossAt == 0:
			e.lossAt = p.sent + wait
		}
	}
}

// lose gives up a packet. Its frame is sent again.
func (e *quicEnd) lose(p *packet) {
	if e.land(p); !p.once {
		e.again = append(e.again, p.frame)
	}
}

// probe is the probe timeout: the oldest packets are sent again without regard
// to the window, or a ping if they were datagrams.
func (e *quicEnd) probe() {
	e.tries++
	for range probes {
		if len(e.out) > 0 {
			e.lose(e.out[0])
		}
		f := e.next()
		if f == nil {
			f = &frame{size: ackLen, once: true, arrived: func() {}}
		}
		e.dispatch(f, true)
	}
}

// due returns when the session has to look for losses next, or 0.
func (e *quicEnd) due() time.Duration {
	switch {
	case e.over || len(e.out) == 0:
		return 0
	case e.lossAt != 0:
		return e.lossAt
	}
	wait := firstProbe
	if e.smoothed != 0 {
		wait = e.smoothed + max(4*e.deviation, granularity) + ackDelay
	}
	return e.sentLast + min(wait<<min(e.tries, 20), mostProbe)
}

// arm sets a timer for look at the next deadline.
func (e *quicEnd) arm() {
	at := e.due()
	if at == 0 || e.timer != 0 && e.timer <= at {
		return // the look at e.timer arms the next
	}
	e.timer = at
	e.p.after(at-e.s.w.now, func() {
		if e.timer == at {
			e.timer = 0
			e.look()
		}
	})
}

// look runs the timer that is due.
func (e *quicEnd) look() {
	if at := e.due(); at == 0 {
		return
	} else if at > e.s.w.now {
		e.arm()
		return
	}
	if e.lossAt != 0 {
		e.findLost()
	} else {
		e.probe()
	}
	e.advance()
}
