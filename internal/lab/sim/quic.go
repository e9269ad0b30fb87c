package sim

import (
	"errors"
	"io"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
)

const (
	// handshakeAgain is how long quic-go waits for the answer to its first
	// packet, and twice as long for the next.
	handshakeAgain = 200 * time.Millisecond

	streamWindow = 64 << 10 // bytes not acknowledged, of one stream
	packetLen    = 1252
)

// A quic is a session of a link: streams and datagrams between two processes, and only
// they know it. A process that dies sends nothing, and one that stands still does not
// retransmit.
type quic struct {
	w    *world
	ends [2]*quicEnd // the first has dialed
}

// A quicEnd is one end of a session.
type quicEnd struct {
	s    *quic
	side int
	p    *proc
	way  *path // to the other end, once it is used
	over bool
	left transport.CloseError // how it ended
	flight
	tail

	opened   []*stream // by this end, in order
	shown    int       // how many of those the peer has seen
	streams  []*stream // opened by the peer, before stream is set
	stream   func(*stream)
	datagram func([]byte)
	ended    func(transport.CloseError) // the session ended, and not by close
}

func (e *quicEnd) peer() *quicEnd { return e.s.ends[1-e.side] }

func (e *quicEnd) path() *path {
	if e.way == nil {
		e.way = e.s.w.net.path(e.p.at.index, e.peer().p.at.index, faults.Link, faults.Packets)
	}
	return e.way
}

// dialQUIC opens a session to the process of a machine within limit. done gets
// nil if there is no answer: a port without a process is silent.
func (w *world) dialQUIC(p *proc, to *machine, limit time.Duration, done func(*quicEnd)) {
	over := false
	finish := once(func(e *quicEnd) {
		over = true
		done(e)
	})
	p.after(limit, func() { finish(nil) })
	there := w.net.path(p.at.index, to.index, faults.Link, faults.Packets)
	back := w.net.path(to.index, p.at.index, faults.Link, faults.Packets)
	var try func(n int)
	try = func(n int) {
		if over {
			return
		}
		p.after(handshakeAgain<<min(n, 8), func() { try(n + 1) })
		for range min(n+1, probes) {
			there.carry(packetLen, func() {
				if target := to.proc; target != nil && !over {
					target.soon(func() {
						back.carry(packetLen, func() {
							p.soon(func() {
								if !over && !target.dead {
									finish(w.connectQUIC(p, target))
								}
							})
						})
					})
				}
			})
		}
	}
	try(0)
}

// connectQUIC makes the session of two processes and returns the dialer's end. The
// listener's process sees it with the first packet of the dialer, right behind this moment.
func (w *world) connectQUIC(p, target *proc) *quicEnd {
	s := &quic{w: w}
	for i, q := range []*proc{p, target} {
		s.ends[i] = newQUICEnd(s, i, q)
		q.links = append(q.links, s.ends[i])
	}
	target.hand(func() { target.welcome(s.ends[1]) })
	return s.ends[0]
}

// wire puts a packet on its way; arrived runs at the other end, once for each copy that
// the network makes. Packets of a session that has ended here go too: its close is one.
func (e *quicEnd) wire(size int, arrived func()) {
	if e.p.dead {
		return
	}
	e.path().carry(min(size, packetLen), func() { e.peer().arrive(arrived) })
}

// arrive takes a packet from the network: for this end, or, if the process has
// another incarnation, or the session is over, for the process that answers in its place.
func (e *quicEnd) arrive(f func()) {
	now := e.p.at.proc
	switch {
	case now == nil:
	case now != e.p:
		now.soon(func() { e.unknown(now) })
	default:
		e.p.soon(func() {
			if e.over {
				e.closedAlready()
				return
			}
			f()
		})
	}
}

// unknown answers a packet of a session that the process does not know: with a
// stateless reset, if it has the key of the process that was here.
func (e *quicEnd) unknown(now *proc) {
	if now.resetKey != e.p.resetKey {
		return
	}
	e.sendEnd(transport.CloseError{Reset: true})
}

// closedAlready repeats how this end closed.
func (e *quicEnd) closedAlready() {
	if !e.left.Remote && !e.left.Reset && !e.left.Timeout {
		e.sendEnd(transport.CloseError{Remote: true, Code: e.left.Code, Reason: e.left.Reason})
	}
}

// sendEnd sends the peer the reason of the end, once.
func (e *quicEnd) sendEnd(how transport.CloseError) {
	o := e.peer()
	e.path().carry(60, func() {
		if o.p.at.proc == o.p {
			o.p.soon(func() { o.end(how) })
		}
	})
}

// end ends this end for a close or reset that has arrived.
func (e *quicEnd) end(how transport.CloseError) {
	if e.over {
		return
	}
	e.finish(how)
	if e.ended != nil {
		e.ended(how)
	}
}

func (e *quicEnd) finish(how transport.CloseError) {
	e.over, e.left = true, how
	e.p.links = without(e.p.links, e)
}

// close ends the session from here, at once.
func (e *quicEnd) close(code uint64, reason string) {
	if e.over {
		return
	}
	o := e.peer()
	e.put(60, false, func() { o.end(transport.CloseError{Remote: true, Code: code, Reason: reason}) })
	e.finish(transport.CloseError{Code: code, Reason: reason})
	e.repeatEnd()
}

// send sends a datagram, at most once as far as QUIC goes: one that cannot go
// at once waits, and is lost if too many wait.
func (e *quicEnd) send(p []byte) {
	if e.over || e.p.dead {
		return
	}
	e.ask()
	if len(e.datagrams) == maxDatagrams {
		return
	}
	o := e.peer()
	e.datagrams = append(e.datagrams, &frame{size: len(p), once: true, arrived: func() {
		if o.datagram != nil {
			o.datagram(p)
		}
	}})
	e.advance()
}

// open opens a stream to the peer, which sees it with its first bytes.
func (e *quicEnd) open() *stream {
	l := &stream{from: e, index: len(e.opened)}
	e.opened = append(e.opened, l)
	return l
}

// serve takes the streams that the peer opens, those that wait first.
func (e *quicEnd) serve(f func(*stream)) {
	e.stream = f
	waiting := e.streams
	e.streams = nil
	for _, l := range waiting {
		f(l)
	}
}

// announce shows the peer's streams up to l, in the order in which they were
// opened: the first bytes of one open those before it too.
func (e *quicEnd) announce(l *stream) {
	o := e.peer()
	for o.shown <= l.index {
		next := o.opened[o.shown]
		o.shown++
		if next.shown = true; e.stream != nil {
			e.stream(next)
		} else {
			e.streams = append(e.streams, next)
		}
	}
}

// A stream is one direction of a session: bytes in order. Both its ends are here.
type stream struct {
	from  *quicEnd
	index int // of from's streams

	order sequence[piece]

	// The writing end.
	under   int    // bytes not acknowledged
	closed  bool   // nothing more is written
	stopped bool   // the reader wants no more, or the writer dropped it
	room    func() // the stream takes more
	blocked bool   // room is to be called

	// The reading end.
	ready   [][]byte // arrived in order, not read
	eof     bool
	reset   bool // dropped by the writer
	dropped bool // by the reader
	shown   bool
	more    func() // something has arrived
}

// A piece is the data of one write.
type piece struct {
	bytes []byte
	last  bool
}

// Errors of a stream's Read. errNothing is not an end: there will be more.
var (
	errNothing  = errors.New("sim: nothing has arrived")
	errCanceled = transport.ErrStreamCanceled
)

// takes reports whether the stream takes a write. If not, room is called when it does.
func (l *stream) takes() bool {
	l.blocked = l.under >= streamWindow
	return !l.blocked
}

// write hands over p, which belongs to the stream from here on. It reports false,
// and takes nothing, if so much is under way that the writer has to wait; then
// room is called.
func (l *stream) write(p []byte) bool {
	if !l.takes() {
		return false
	}
	if l.stopped || l.closed || l.from.over {
		return true // it is dropped; the end of the session or the stream is reported
	}
	l.under += len(p)
	l.hand(piece{bytes: p})
	return true
}

// close ends the stream behind the written bytes.
func (l *stream) close() {
	if !l.closed && !l.stopped {
		l.closed = true
		l.hand(piece{last: true})
	}
}

// hand gives a piece to the session, which sends it until it has arrived.
func (l *stream) hand(x piece) {
	n := l.order.sent
	l.order.sent++
	l.from.enqueue(&frame{size: len(x.bytes) + 40, stream: l,
		arrived: func() { l.arrive(n, x) },
		acked:   func() { l.settle(len(x.bytes)) },
	})
}

// settle accounts for n bytes that have arrived at the peer.
func (l *stream) settle(n int) {
	if l.under -= n; l.under < streamWindow && !l.from.over {
		l.unblock()
	}
}

// unblock has a writer that waits for room try again.
func (l *stream) unblock() {
	if l.blocked {
		l.blocked = false
		if l.room != nil {
			l.room()
		}
	}
}

// arrive takes a piece from the network and restores the order.
func (l *stream) arrive(n uint64, x piece) {
	if !l.reset && l.order.arrive(n, x, l.take) {
		l.notify()
	}
}

// notify notifies the reading end that something has arrived, or shows it the stream.
func (l *stream) notify() {
	switch {
	case !l.shown:
		l.from.peer().announce(l)
	case l.more != nil && !l.dropped:
		l.more()
	}
}

// take puts a piece where Read finds it.
func (l *stream) take(x piece) {
	if x.last {
		l.eof = true
	}
	if !l.dropped && len(x.bytes) > 0 {
		l.ready = append(l.ready, x.bytes)
	}
}

// Read implements io.Reader at the reading end. It does not block: errNothing means
// that there is nothing yet.
func (l *stream) Read(p []byte) (int, error) {
	switch {
	case l.dropped || l.reset:
		return 0, errCanceled
	case len(l.ready) == 0 && l.eof:
		return 0, io.EOF
	case len(l.ready) == 0:
		return 0, errNothing
	}
	n := copy(p, l.ready[0])
	if n == len(l.ready[0]) {
		l.ready[0] = nil
		l.ready = l.ready[1:]
	} else {
		l.ready[0] = l.ready[0][n:]
	}
	return n, nil
}

// cancel drops the stream at the writing end; the reader is notified.
func (l *stream) cancel() {
	if l.stopped || l.closed && l.under == 0 {
		return
	}
	l.stopped = true
	l.from.control(func() {
		if !l.eof && !l.reset {
			l.reset, l.ready = true, nil
			l.notify()
		}
	})
}

// drop drops it at the reading end: arriving bytes are thrown away, and the writer is
// asked to stop.
func (l *stream) drop() {
	if l.dropped || l.eof {
		l.dropped = true
		return
	}
	l.dropped, l.ready = true, nil
	l.from.peer().control(func() {
		l.stopped = true
		l.unblock()
	})
}

// reset ends every session and connection between two machines, as a rule with
// Reset does, and returns how many those were.
func (w *world) reset(from, to int) (n uint64) {
	m := w.machines[from]
	if m.proc == nil {
		return 0
	}
	for _, e := range m.proc.links {
		if e.peer().p.at.index == to {
			n++
			for _, side := range e.s.ends {
				side.p.soon(func() { side.end(transport.CloseError{Reset: true}) })
			}
		}
	}
	for _, e := range m.proc.sockets {
		if e.peer().p.at.index == to {
			n++
			for _, side := range e.t.ends {
				side.p.soon(side.cut)
			}
		}
	}
	return n
}
