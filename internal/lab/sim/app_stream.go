package sim

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/status"
)

const (
	tellEvery  = 50 * time.Millisecond  // how long bytes stay unwritten at most
	offerAhead = 250 * time.Millisecond // how far ahead an end says what it will send
	recvSize   = 16 << 10
)

// A pace keeps a loop to a rate. Time that the loop loses is lost.
type pace struct {
	a     *app
	every time.Duration
	next  time.Duration
	step  func() // that waits; nil: none
	n     int    // counts the waits: an old timer does nothing
}

// newPace returns a pace that does not wait any more once its end is canceled.
func newPace(e *appEnd, rate float64) *pace {
	p := &pace{a: e.a, every: time.Duration(float64(time.Second) / rate), next: e.a.w.now}
	e.paces = append(e.paces, p)
	return p
}

// wait calls f when the next step is due.
func (p *pace) wait(f func()) {
	now := p.a.w.now
	d := max(p.next-now, 0)
	p.next = max(p.next, now) + p.every
	p.n++
	mine := p.n
	p.step = f
	p.a.p.after(d, func() {
		if p.n == mine {
			p.hurry()
		}
	})
}

// hurry takes the step that waits now.
func (p *pace) hurry() {
	if f := p.step; f != nil {
		p.step = nil
		p.n++
		f()
	}
}

// stream sends messages and receives the peer's, until either fails or the
// application ends.
func (e *appEnd) stream() {
	e.loops += 2
	e.sendMessages()
	e.receive(0, e.teller(func(r history.Range) { e.put(&history.Received{ConnEnd: e.id, Range: r}) }))
}

func (e *appEnd) sendMessages() {
	m := e.a.w.load.messages
	key := endKey(e.id)
	t := e.teller(func(r history.Range) { e.put(&history.Sent{ConnEnd: e.id, Range: r}) })
	ahead := (int64(m.rate*offerAhead.Seconds()) + 1) * m.size[1]
	p := newPace(e, m.rate)
	var pos, offered int64
	var i uint64
	var next func()
	next = func() {
		if e.canceled || e.closed {
			t.flush()
			e.loopEnded(true)
			return
		}
		size := m.size[0] + int64(mix(e.id.Conn^i)%uint64(m.size[1]-m.size[0]+1))
		i++
		msg := make([]byte, size)
		fill(msg, key, pos)
		if pos+size > offered {
			e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{From: offered, To: pos + ahead}})
			offered = pos + ahead
		}
		e.send(msg, func(n int64, err error) {
			t.add(pos, pos+n)
			pos += n
			if err != nil {
				t.flush()
				e.loopEnded(true)
				return
			}
			p.wait(next)
		})
	}
	p.wait(next)
}

// receive receives until the connection ends, and compares.
func (e *appEnd) receive(pos int64, t *teller) {
	if e.canceled || e.closed {
		t.flush()
		e.loopEnded(true)
		return
	}
	n := recvSize
	if e.a.slow > 0 { // one message at a time
		n = int(e.a.w.load.messages.size[1])
	}
	e.recv(n, func(p []byte, err error) {
		if bad := verify(p, endKey(history.ConnEnd{Conn: e.id.Conn, Side: e.id.Side.Other()}), pos); bad >= 0 {
			t.flush()
			at := pos + int64(bad)
			e.put(&history.Received{ConnEnd: e.id, Range: history.Range{From: pos, To: pos + int64(len(p))}, Bad: &at})
			t.r = history.Range{From: pos + int64(len(p)), To: pos + int64(len(p))}
		} else {
			t.add(pos, pos+int64(len(p)))
		}
		pos += int64(len(p))
		if err != nil {
			t.flush()
			e.loopEnded(true)
			return
		}
		if e.a.slow > 0 {
			e.a.p.after(time.Second/time.Duration(e.a.slow), func() { e.receive(pos, t) })
			return
		}
		e.receive(pos, t)
	})
}

// A teller writes adjacent ranges as one record, tellEvery after the first of them:
// a standstill is seen to as much.
type teller struct {
	a   *app
	put func(history.Range)
	r   history.Range
	n   int // counts the records: an old timer does nothing
}

// teller returns a teller of this end.
func (e *appEnd) teller(put func(history.Range)) *teller {
	t := &teller{a: e.a, put: put}
	e.tellers = append(e.tellers, t)
	return t
}

// flush writes what its tellers hold back.
func (e *appEnd) flush() {
	for _, t := range e.tellers {
		t.flush()
	}
}

// add tells of [from, to), which is behind everything told before.
func (t *teller) add(from, to int64) {
	if from == to {
		return
	}
	if t.r.From == t.r.To {
		t.r.From = from
		mine := t.n
		t.a.p.after(tellEvery, func() {
			if t.n == mine {
				t.flush()
			}
		})
	}
	t.r.To = to
}

func (t *teller) flush() {
	if t.r.From < t.r.To {
		t.n++
		t.put(t.r)
	}
	t.r.From = t.r.To
}

const shortSize = 4 << 10 // bytes at most, each way

// exchange is a short connection: the client sends and the server answers, each
// as much as follows from the nonce, and closes; the client reads to the end.
func (e *appEnd) exchange() {
	there := int64(mix(e.id.Conn)%shortSize) + 1
	back := int64(mix(^e.id.Conn)%shortSize) + 1
	e.loops++
	over := func() { e.loopEnded(true) }
	if e.id.Side == history.Client {
		e.give(there, func(ok bool) {
			if !ok {
				over()
				return
			}
			e.take(back, func(bool) { over() })
		})
		return
	}
	e.take(there, func(ok bool) {
		if !ok {
			over()
			return
		}
		e.give(back, func(bool) { over() })
	})
}

// give sends n bytes from the beginning.
func (e *appEnd) give(n int64, then func(ok bool)) {
	p := make([]byte, n)
	fill(p, endKey(e.id), 0)
	e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{To: n}})
	e.send(p, func(sent int64, err error) {
		if sent > 0 {
			e.put(&history.Sent{ConnEnd: e.id, Range: history.Range{To: sent}})
		}
		then(err == nil)
	})
}

// take receives n bytes from the beginning. A client reads on to the orderly
// end that has to follow.
func (e *appEnd) take(n int64, then func(ok bool)) {
	e.recvFull(int(n), nil, func(p []byte, err error) {
		r := &history.Received{ConnEnd: e.id, Range: history.Range{To: int64(len(p))}}
		if bad := verify(p, endKey(history.ConnEnd{Conn: e.id.Conn, Side: e.id.Side.Other()}), 0); bad >= 0 {
			at := int64(bad)
			r.Bad = &at
		}
		if len(p) > 0 {
			e.put(r)
		}
		if err != nil || e.id.Side == history.Server {
			then(err == nil)
			return
		}
		e.recv(1, func(p []byte, err error) {
			if len(p) > 0 { // bytes that nobody has sent
				at := n
				e.put(&history.Received{ConnEnd: e.id, Range: history.Range{From: n, To: n + 1}, Bad: &at})
			}
			then(err != nil)
		})
	})
}

// parkedBytes is what a parked end offers to a peer that does not receive: more
// than a connection buffers.
const parkedBytes = messageWindow + laneWindow + 8<<10

// park makes calls that wait, until the connection ends: the client sends to a
// server that does not receive, and receives and polls for what never comes;
// the server polls for the end.
func (e *appEnd) park() {
	e.loops++
	if e.id.Side == history.Client {
		e.loops += 2
		p := e.a.w.parked
		e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{To: int64(len(p))}})
		e.wait("send", true, func(done func(int64, error)) {
			e.ep.send(p, func(n int, err error) { done(int64(n), err) })
		}, func(n int64, _ error) {
			if n > 0 {
				e.put(&history.Sent{ConnEnd: e.id, Range: history.Range{To: n}})
			}
			e.loopEnded(true)
		})
		e.wait("recv", true, func(done func(int64, error)) {
			e.ep.recv(1, func(p []byte, err error) { done(int64(len(p)), err) })
		}, func(n int64, _ error) {
			if n > 0 {
				at := int64(0)
				e.put(&history.Received{ConnEnd: e.id, Range: history.Range{To: n}, Bad: &at})
			}
			e.loopEnded(true)
		})
	}
	e.wait("poll", true, func(done func(int64, error)) {
		e.ep.poll(func() { done(0, nil) })
	}, func(_ int64, err error) {
		if err == nil && !e.canceled && e.failed == "" {
			e.fail(status.Reset) // the connection has ended, and nobody said so in order
		}
		e.loopEnded(true)
	})
}
