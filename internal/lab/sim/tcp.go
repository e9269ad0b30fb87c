package sim

import (
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A kernel's retransmission of unacknowledged bytes: first a tail probe, then timeouts
// that double.
const (
	tcpProbe = 15 * time.Millisecond
	tcpFirst = 200 * time.Millisecond
	tcpMost  = 5 * time.Second
)

// A tcp is a TCP connection with TLS, which carries values: a control session or a
// lifeline. Its two halves belong to the kernels, which go on sending when the process
// at one end stands still, and report its end when it dies.
type tcp struct {
	w    *world
	ends [2]*tcpEnd // the first has dialed
}

// A tcpEnd is one end.
type tcpEnd struct {
	t    *tcp
	side int
	p    *proc
	open bool  // the socket is
	way  *path // to the other end, once it is used

	order  sequence[any] // of the items
	ending bool          // this end has sent Close and waits for the peer's end

	received func(m any)
	ended    func(cause verdict.DownCause)
}

// Items that are no messages.
type (
	tcpClose struct{} // the peer ends it on purpose
	tcpFin   struct{} // the end of the stream
)

func newTCP(w *world, a, b *proc) *tcp {
	t := &tcp{w: w}
	for i, p := range []*proc{a, b} {
		e := &tcpEnd{t: t, side: i, p: p, open: true, received: func(any) {}, ended: func(verdict.DownCause) {}}
		t.ends[i] = e
		p.sockets = append(p.sockets, e)
	}
	return t
}

func (e *tcpEnd) peer() *tcpEnd { return e.t.ends[1-e.side] }

func (e *tcpEnd) path() *path {
	if e.way == nil {
		e.way = e.t.w.net.path(e.p.at.index, e.peer().p.at.index, faults.Control, faults.Stream)
	}
	return e.way
}

// send hands m to the kernel.
func (e *tcpEnd) send(m any) {
	if e.open && !e.ending {
		e.hand(m)
	}
}

func (e *tcpEnd) hand(m any) {
	n := e.order.sent
	e.order.sent++
	e.transmit(n, m, 0)
}

// transmit is the kernel: it tries until the item has arrived, or the other
// end's kernel knows nothing of the connection.
func (e *tcpEnd) transmit(n uint64, m any, try int) {
	if e.path().carry(100, func() { e.peer().arrive(n, m) }) {
		e.t.w.after(tcpAgain(try), func() { e.transmit(n, m, try+1) })
	}
}

func tcpAgain(try int) time.Duration {
	if try == 0 {
		return tcpProbe
	}
	return min(tcpFirst<<min(try-1, 5), tcpMost)
}

// arrive takes an item from the network, keeps the order and passes it on.
func (e *tcpEnd) arrive(n uint64, m any) {
	if !e.open {
		e.refuse()
		return
	}
	e.order.arrive(n, m, func(m any) { e.p.soon(func() { e.take(m) }) })
}

// refuse answers to a packet for a socket that is not there.
func (e *tcpEnd) refuse() {
	o := e.peer()
	e.path().carry(60, func() { o.p.soon(func() { o.end(verdict.DownEnded) }) })
}

// take gives an item to the process.
func (e *tcpEnd) take(m any) {
	switch m.(type) {
	case tcpClose:
		e.end(verdict.DownClosed)
	case tcpFin:
		e.end(verdict.DownEnded)
	default:
		if e.open && !e.ending {
			e.received(m)
		}
	}
}

// end closes the socket and notifies its owner. The end that sent Close first ended it
// on purpose.
func (e *tcpEnd) end(cause verdict.DownCause) {
	if !e.open {
		return
	}
	if e.ending {
		cause = verdict.DownClosed
	}
	e.shut()
	e.ended(cause)
}

// shut closes the socket: the kernel sends the queued bytes, and the end.
func (e *tcpEnd) shut() {
	if !e.open {
		return
	}
	e.open = false
	e.p.sockets = without(e.p.sockets, e)
	e.hand(tcpFin{})
}

// close ends the connection on purpose, behind the sent items. The owner is notified
// when the peer has ended it too, or after a second.
func (e *tcpEnd) close() {
	if !e.open || e.ending {
		return
	}
	e.hand(tcpClose{})
	e.ending = true
	e.p.after(time.Second, func() { e.end(verdict.DownClosed) })
}

// abort ends it at once, as the death of the process would.
func (e *tcpEnd) abort() {
	e.ending = true
	e.end(verdict.DownClosed)
}

// cut ends it because of the network: a reset that neither end sent.
func (e *tcpEnd) cut() {
	if e.open {
		e.open = false
		e.p.sockets = without(e.p.sockets, e)
		e.ended(verdict.DownEnded)
	}
}

// dialTCP opens a connection to a machine within limit. Once both processes have it, done
// gets the dialing end. The peer's process gets the other end by its accept.
func (w *world) dialTCP(p *proc, to *machine, limit time.Duration, done func(*tcpEnd)) {
	var mine *tcpEnd // of a connection that is in its TLS handshake
	over := false
	finish := once(func(e *tcpEnd) {
		if over = true; e == nil && mine != nil {
			mine.shut()
		}
		done(e)
	})
	p.after(limit, func() { finish(nil) })
	there := w.net.path(p.at.index, to.index, faults.Control, faults.Stream)
	back := w.net.path(to.index, p.at.index, faults.Control, faults.Stream)
	answered := func(target *proc) {
		if target == nil || target.dead {
			finish(nil)
		} else if !over {
			mine = w.secureTCP(p, target, finish)
		}
	}
	var try func(n int) // sends one SYN and takes its answer
	try = func(n int) {
		if over || p.dead {
			return
		}
		if there.halfOpen(w.now) || back.halfOpen(w.now) {
			p.after(time.Millisecond, func() { finish(nil) })
			return
		}
		again := func() { w.after(time.Second<<min(n, 3), func() { try(n + 1) }) }
		if there.carry(60, func() {
			target := to.proc
			if back.carry(60, func() { p.soon(func() { answered(target) }) }) {
				again()
			}
		}) {
			again()
		}
	}
	try(0)
}

// secureTCP makes the connection of two processes and begins the round trip of TLS, which
// the other process answers when it runs.
func (w *world) secureTCP(p, target *proc, finish func(*tcpEnd)) *tcpEnd {
	type hello struct{}
	t := newTCP(w, p, target)
	mine, theirs := t.ends[0], t.ends[1]
	mine.received = func(any) { finish(mine) }
	mine.ended = func(verdict.DownCause) { finish(nil) }
	theirs.received = func(any) {
		theirs.send(hello{})
		target.accept(theirs)
	}
	mine.send(hello{})
	return mine
}
