package workload

import (
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	// tellEvery bounds how long bytes that were sent or received stay unwritten.
	tellEvery = 50 * time.Millisecond
	// offerAhead is for how long an end says in advance what it will send.
	offerAhead = 250 * time.Millisecond
	// recvSize is how much one receive takes.
	recvSize = 64 << 10
)

// stream sends messages and receives the peer's, until either fails or the
// application ends.
func (e *end) stream() {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer e.cancel()
		e.receive()
	})
	e.sendMessages()
	e.linger()
	wg.Wait()
}

// sendMessages sends messages at the workload's rate.
func (e *end) sendMessages() {
	defer e.s.app.active()()
	m := e.s.app.c.Messages
	pace := e.s.app.atRate(m.Rate)
	defer pace.stop()
	t := newTeller(func(r history.Range) { e.put(&history.Sent{ConnEnd: e.id, Range: r}) })
	defer t.flush()
	buf := make([]byte, m.Max)
	ahead := (int64(m.Rate)*int64(offerAhead)/int64(time.Second) + 1) * m.Max
	var pos, offered int64
	for i := uint64(0); e.paced(pace); i++ {
		size := m.Min + int64(mix(e.id.Conn^i)%uint64(m.Max-m.Min+1))
		p := buf[:size]
		Fill(p, e.id.Conn, e.id.Side, pos)
		if pos+size > offered {
			e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{From: offered, To: pos + ahead}})
			offered = pos + ahead
		}
		n, err := e.send(p)
		t.add(pos, pos+int64(n))
		pos += int64(n)
		if err != nil {
			return
		}
	}
}

// receive receives until the connection ends, and compares.
func (e *end) receive() {
	t := newTeller(func(r history.Range) { e.put(&history.Received{ConnEnd: e.id, Range: r}) })
	defer t.flush()
	buf := make([]byte, recvSize)
	var pos int64
	for e.ctx.Err() == nil {
		p := buf
		if slow := e.s.app.slow.Load(); slow > 0 { // one message at a time
			p = buf[:min(len(buf), int(e.s.app.c.Messages.Max))]
			wait(e.ctx.Done(), time.Second/time.Duration(slow))
		}
		c := e.call("recv")
		c.Idle = true
		call := e.s.app.calls.begin(c, false)
		n, err := e.readSome(p)
		e.end(call, n, err)
		if bad := Verify(buf[:n], e.id.Conn, e.id.Side.Other(), pos); bad >= 0 {
			t.flush()
			at := pos + int64(bad)
			e.put(&history.Received{ConnEnd: e.id, Range: history.Range{From: pos, To: pos + int64(n)}, Bad: &at})
			t.skip(pos + int64(n))
		} else {
			t.add(pos, pos+int64(n))
		}
		pos += int64(n)
		if err != nil {
			return
		}
	}
}

// readSome takes what is there and waits for at least one byte; it returns when
// the end's context is done.
func (e *end) readSome(p []byte) (int, error) {
	n, err := e.ep.TryRecv(p)
	if n > 0 || err != nil {
		return n, err
	}
	if n, err = e.ep.Recv(e.ctx, p[:1]); err != nil {
		return n, err
	}
	more, err := e.ep.TryRecv(p[1:])
	return n + more, err
}

// A teller writes adjacent ranges as one record, not later than tellEvery after
// the first of them if more come. One goroutine uses it.
type teller struct {
	put   func(history.Range)
	r     history.Range
	since time.Time
}

func newTeller(put func(history.Range)) *teller { return &teller{put: put} }

// add tells of [from, to), which is behind everything told before.
func (t *teller) add(from, to int64) {
	if from == to {
		return
	}
	if t.r.From == t.r.To {
		t.r.From, t.since = from, time.Now()
	}
	t.r.To = to
	if time.Since(t.since) >= tellEvery {
		t.flush()
	}
}

// flush writes what is not written.
func (t *teller) flush() {
	if t.r.From < t.r.To {
		t.put(t.r)
	}
	t.r.From = t.r.To
}

// skip passes over what somebody else has written.
func (t *teller) skip(to int64) { t.r = history.Range{From: to, To: to} }
