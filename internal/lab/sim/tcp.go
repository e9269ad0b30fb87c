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

	sent     uint64 // items handed to the kernel
	expected uint64 // number of the next item
	early    map[uint64]any
	ending   bool // this end has said Close and waits for the peer's end

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
	n := e.sent
	e.sent++
	e.transmit(n, m, 0)
}

// transmit is the kernel: it tries until the item has arrived, or the other
// end's kernel knows nothing of the connection.
func (e *tcpEnd) transmit(n uint64, m any, try int) {
	w := e.t.w
	c := e.path().cross(w.now, 100)
	if c.Drop {
		w.after(tcpAgain(try), func() { e.transmit(n, m, try+1) })
		return
	}
	w.after(c.Delay, func() { e.peer().arrive(n, m) })
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
	if n != e.expected {
		if e.early == nil {
			e.early = make(map[uint64]any)
		}
		e.early[n] = m
		return
	}
	for ok := true; ok; m, ok = e.early[e.expected] {
		delete(e.early, e.expected)
		e.expected++
		item := m
		e.p.soon(func() { e.take(item) })
	}
}

// refuse answers to a packet for a socket that is not there.
func (e *tcpEnd) refuse() {
	if c := e.path().cross(e.t.w.now, 60); !c.Drop {
		o := e.peer()
		e.t.w.after(c.Delay, func() { o.p.soon(func() { o.end(verdict.DownEnded) }) })
	}
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
	e.p.dropSocket(e)
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
		e.p.dropSocket(e)
		e.ended(verdict.DownEnded)
	}
}

// dialTCP opens a connection to a machine within limit. Once both kernels have it, done
// gets the dialing end. The peer's process gets the other end by its accept.
func (w *world) dialTCP(p *proc, to *machine, limit time.Duration, done func(*tcpEnd)) {
	d := &dial{w: w, p: p, to: to, done: done, until: w.now + limit}
	p.after(limit, func() { d.finish(nil) })
	d.try(0)
}

// A dial is one attempt to connect.
type dial struct {
	w     *world
	p     *proc
	to    *machine
	until time.Duration
	mine  *tcpEnd // of a connection that is in its TLS handshake
	over  bool
	done  func(*tcpEnd)
}

func (d *dial) finish(e *tcpEnd) {
	if d.over {
		return
	}
	d.over = true
	if e == nil && d.mine != nil {
		d.mine.shut()
	}
	d.done(e)
}

// try sends one SYN and takes its answer. TLS takes another round trip, in
// which the process at the other end has a part.
func (d *dial) try(n int) {
	w := d.w
	if d.over || d.p.dead || w.now > d.until {
		return
	}
	there := w.net.path(d.p.at.index, d.to.index, faults.Control, faults.Stream)
	back := w.net.path(d.to.index, d.p.at.index, faults.Control, faults.Stream)
	if there.half(w.now) || back.half(w.now) {
		d.p.after(time.Millisecond, func() { d.finish(nil) })
		return
	}
	out := there.cross(w.now, 60)
	if out.Drop {
		w.after(time.Second<<min(n, 3), func() { d.try(n + 1) })
		return
	}
	w.after(out.Delay, func() {
		in := back.cross(w.now, 60)
		target := d.to.proc
		if in.Drop {
			w.after(time.Second<<min(n, 3), func() { d.try(n + 1) })
			return
		}
		w.after(in.Delay, func() {
			d.p.soon(func() {
				if target == nil || target.dead {
					d.finish(nil)
					return
				}
				d.secure(target)
			})
		})
	})
}

// secure is the round trip of TLS: the other process answers when it runs.
func (d *dial) secure(target *proc) {
	if d.over {
		return
	}
	type hello struct{}
	t := newTCP(d.w, d.p, target)
	mine, theirs := t.ends[0], t.ends[1]
	d.mine = mine
	mine.received = func(any) { d.finish(mine) }
	mine.ended = func(verdict.DownCause) { d.finish(nil) }
	theirs.received = func(any) {
		theirs.send(hello{})
		target.accept(theirs)
	}
	mine.send(hello{})
}
