package sim

import (
	"slices"
	"time"
)

// How quic-go recovers from losses (RFC 9002), as far as a run depends on it: a
// congestion window for the whole session, which only acknowledgements and probes pass
// when it is full, and a probe timeout that doubles, without a bound that a test would
// reach, until something is acknowledged. Heartbeats wait behind the window like all else.
const (
	firstWindow = 32 * packetLen
	leastWindow = 2 * packetLen

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

// A packet is one that the peer acknowledges.
type packet struct {
	*frame
	number uint64
	sent   time.Duration
	got    uint64 // how many packets the peer had received with it; 0: it has not
}

// A flight is the packets that one end has under way.
type flight struct {
	datagrams, again, queue []*frame // to be sent, in this order: again were lost
	sending                 bool     // advance is at work

	last     uint64    // number of the newest packet
	out      []*packet // under way, by number
	bytes    int       // of those
	window   int       // for bytes
	cutback  uint64    // the newest packet when the window was cut last
	largest  uint64    // the newest packet that was acknowledged
	sentLast time.Duration
	tries    int           // probe timeouts without an acknowledgement
	timer    time.Duration // of the next probe timeout; 0: there is none
	acks     int           // acknowledgements of something new
	received uint64        // packets from the peer

	smoothed, deviation, least time.Duration // round trips
}

func newQUICEnd(s *quic, side int, p *proc) *quicEnd {
	return &quicEnd{s: s, side: side, p: p, flight: flight{window: firstWindow}}
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
			if *q = (*q)[1:]; !f.known && (f.stream == nil || !f.stream.stopped) {
				return f
			}
		}
	}
	return nil
}

// dispatch sends a frame in a new packet.
func (e *quicEnd) dispatch(f *frame, probe bool) {
	e.last++
	p := &packet{frame: f, number: e.last, sent: e.s.w.now}
	e.out = append(e.out, p)
	e.bytes += p.size
	e.sentLast = p.sent
	o := e.peer()
	e.put(p.size, probe, func() { o.receive(p) })
}

// receive takes a packet of the peer and acknowledges it, with all before it. An
// acknowledgement costs nothing of the window. A real one may wait for 25 ms.
func (e *quicEnd) receive(p *packet) {
	if p.got != 0 {
		return // a duplicate
	}
	e.received++
	p.got = e.received
	o := e.peer()
	e.put(ackLen, false, func() { o.acknowledged(p.got) })
	p.arrived()
}

// acknowledged takes the peer's acknowledgement of so many packets.
func (e *quicEnd) acknowledged(upTo uint64) {
	full := e.bytes+packetLen >= e.window
	var news []*packet
	e.land(func(p *packet) bool {
		if p.got == 0 || p.got > upTo {
			return false
		}
		news = append(news, p)
		return true
	})
	if len(news) == 0 {
		return // an old one
	}
	e.acks++
	e.tries = 0
	if p := news[len(news)-1]; p.number > e.largest {
		e.largest = p.number
		e.measure(e.s.w.now - p.sent)
	}
	for _, p := range news {
		if full && p.number > e.cutback {
			e.window += p.size * packetLen / e.window
		}
	}
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

// measure takes a round trip.
func (e *quicEnd) measure(rtt time.Duration) {
	if e.smoothed == 0 {
		e.smoothed, e.deviation, e.least = rtt, rtt/2, rtt
		return
	}
	e.least = min(rtt, e.least)
	e.deviation = (3*e.deviation + (e.smoothed - rtt).Abs()) / 4
	e.smoothed = (7*e.smoothed + rtt) / 8
}

// land takes packets out of the window.
func (e *quicEnd) land(which func(*packet) bool) {
	e.out = slices.DeleteFunc(e.out, func(p *packet) bool {
		yes := which(p)
		if yes {
			e.bytes -= p.size
		}
		return yes
	})
}

// findLost gives up the packets that later ones have overtaken, and cuts the window once
// for all that was under way.
func (e *quicEnd) findLost() {
	e.land(func(p *packet) bool {
		if p.number+overtaken > e.largest {
			return false
		}
		if p.number > e.cutback {
			e.window, e.cutback = max(e.window*7/10, leastWindow), e.last
		}
		e.lose(p)
		return true
	})
}

// lose gives up a packet. Its frame is sent again.
func (e *quicEnd) lose(p *packet) {
	if !p.once {
		e.again = append(e.again, p.frame)
	}
}

// probe is the probe timeout: the oldest packets are sent again without regard to the
// window, or a ping if they were datagrams.
func (e *quicEnd) probe() {
	e.tries++
	for range probes {
		oldest := e.out[0]
		e.land(func(p *packet) bool { return p == oldest })
		e.lose(oldest)
		f := e.next()
		if f == nil {
			f = &frame{size: ackLen, once: true, arrived: func() {}}
		}
		e.dispatch(f, true)
	}
	e.advance()
}

// due returns when the next probe timeout is, or 0.
func (e *quicEnd) due() time.Duration {
	if e.over || len(e.out) == 0 {
		return 0
	}
	wait := firstProbe
	if e.smoothed != 0 {
		wait = e.smoothed + max(4*e.deviation, granularity) + ackDelay
	}
	return e.sentLast + min(wait<<min(e.tries, 20), mostProbe)
}

// arm sets a timer for the next probe timeout. What is sent or acknowledged meanwhile
// moves it.
func (e *quicEnd) arm() {
	at := e.due()
	if at == 0 || e.timer != 0 && e.timer <= at {
		return
	}
	e.timer = at
	e.p.after(at-e.s.w.now, func() {
		if e.timer != at {
			return
		}
		e.timer = 0
		if now := e.due(); now != 0 && now <= e.s.w.now {
			e.probe()
			return
		}
		e.arm()
	})
}
