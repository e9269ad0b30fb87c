package sim

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/status"
)

// What a connection is for: the first byte that its client sends.
const (
	kindStream byte = 'S' // messages in both directions
	kindRMA    byte = 'R' // operations in both directions
	kindShort  byte = 'C' // one exchange, then an orderly close
	kindParked byte = 'P' // calls that wait
)

const (
	helloSize  = 16 // kind, a zero, the client's life, the nonce
	answerSize = 8  // two zeros, the server's life
)

// An appEnd is an application's end of a connection.
type appEnd struct {
	a      *app
	s      *session
	kind   byte
	ep     *endpoint
	id     history.ConnEnd
	local  addr.Life
	remote addr.Life

	open     bool
	canceled bool   // its loops are to end
	closing  bool   // it is being closed
	closed   bool   // Closed is written
	failed   string // how its first call failed
	loops    int
	window   *window
	tellers  []*teller
	paces    []*pace
	after    func() // when it has ended
}

// dial connects to peer and greets it; done gets nil if that failed.
func (a *app) dial(s *session, peer addr.NodeID, kind byte, done func(*appEnd)) {
	e := &appEnd{a: a, s: s, kind: kind, id: history.ConnEnd{Conn: a.nonce(), Side: history.Client}}
	a.do(history.Call{Name: "connect"}, nil, true, func(answer func(int64, error)) {
		e.ep = s.open()
		e.ep.connect(addr.Addr{Node: peer, Port: appPort}, func(err error) { answer(0, err) })
	}, func(_ int64, err error) {
		if err != nil {
			e.drop()
			done(nil)
			return
		}
		e.local = s.n.self.Life
		hello := make([]byte, helloSize)
		hello[0] = kind
		putLife(hello[2:], e.local)
		binary.BigEndian.PutUint64(hello[8:], e.id.Conn)
		e.send(hello, func(_ int64, err error) {
			e.recvFull(answerSize, nil, func(p []byte, err error) {
				if err == nil {
					e.remote = lifeIn(p[2:])
				}
				if err != nil || !e.plausible(peer) {
					e.drop()
					done(nil)
					return
				}
				e.opened()
				done(e)
			})
		})
	})
}

// greet answers who has connected, and goes on with what the connection is for.
func (a *app) greet(s *session, ep *endpoint) {
	e := &appEnd{a: a, s: s, ep: ep, id: history.ConnEnd{Side: history.Server}}
	e.recvFull(helloSize, nil, func(hello []byte, err error) {
		if err != nil {
			e.drop()
			return
		}
		e.kind, e.remote = hello[0], lifeIn(hello[2:])
		e.id.Conn = binary.BigEndian.Uint64(hello[8:])
		e.local = s.n.self.Life
		answer := make([]byte, answerSize)
		putLife(answer[2:], e.local)
		e.send(answer, func(_ int64, err error) {
			if err != nil || e.id.Conn == 0 || !e.plausible(ep.remote.Node) {
				e.drop()
				return
			}
			e.opened()
			e.run(func() {})
		})
	})
}

func putLife(p []byte, l addr.Life) {
	binary.BigEndian.PutUint16(p, uint16(l.Node))
	binary.BigEndian.PutUint32(p[2:], uint32(l.Generation))
}

func lifeIn(p []byte) addr.Life {
	return addr.Life{Node: addr.NodeID(binary.BigEndian.Uint16(p)), Generation: addr.Generation(binary.BigEndian.Uint32(p[2:]))}
}

func (e *appEnd) plausible(peer addr.NodeID) bool {
	return e.local.Generation != 0 && e.remote.Generation != 0 && e.remote.Node == peer
}

// drop closes an end that was never open.
func (e *appEnd) drop() {
	if ep := e.ep; ep != nil && e.a.s == e.s {
		e.s.n.p.soon(func() { ep.close(func(error) {}) })
	}
}

func (e *appEnd) opened() {
	e.open = true
	e.put(&history.Opened{ConnEnd: e.id, Local: e.local, Remote: e.remote,
		LocalPort: uint16(e.ep.port), RemotePort: uint16(e.ep.remote.Port)})
	e.a.know(e)
	e.a.ends = append(e.a.ends, e)
}

func (e *appEnd) put(b history.Body) { e.a.put(b) }

// run does what the connection is for until it ends, closes it and calls after.
func (e *appEnd) run(after func()) {
	e.after = after
	e.loops++ // of run itself
	switch e.kind {
	case kindStream:
		e.stream()
	case kindRMA:
		e.operate()
	case kindShort:
		e.exchange()
	case kindParked:
		e.park()
	}
	e.loopEnded(false)
}

// loopEnded counts a loop that has ended. With cancel it ends the others.
func (e *appEnd) loopEnded(cancel bool) {
	if e.loops--; cancel {
		e.cancel()
	}
	if e.loops == 0 {
		e.close()
	}
}

// cancel ends what the end is doing.
func (e *appEnd) cancel() {
	if e.canceled {
		return
	}
	e.canceled = true
	for _, o := range slices.Clone(e.a.calls) {
		if o.end == e && !o.over && o.Idle {
			e.a.finish(o, 0, status.Canceled)
			o.then(0, status.Canceled)
		}
	}
	for _, p := range e.paces {
		e.a.p.after(0, p.hurry)
	}
}

// gone ends the end because its fabricd is gone: there is nothing to close.
func (e *appEnd) gone() {
	e.canceled = true
	e.fail(status.Reset)
	e.wrapUp()
}

// close closes the end and writes how it ended.
func (e *appEnd) close() {
	if e.closed || e.closing {
		return
	}
	e.closing = true
	if w := e.window; w != nil && e.failed == "" && e.a.s == e.s {
		e.try("unregister", func(done func(int64, error)) {
			e.ep.unregister(w.offset, int64(len(w.bytes())), func(err error) { done(0, err) })
		}, func(int64, error) { e.closeNow() })
		return
	}
	e.closeNow()
}

func (e *appEnd) closeNow() {
	if e.closed {
		return
	}
	e.a.do(e.callOf("close"), e, false, func(done func(int64, error)) {
		e.ep.close(func(err error) { done(0, err) })
	}, func(_ int64, err error) {
		if status.Of(err) != status.BadFD || e.a.s != e.s {
			e.wrapUp()
			return
		}
		// Its fabricd is closing it already. Until that is through the peer's
		// operations that were under way may still arrive.
		e.s.n.p.soon(func() { e.ep.whenThrough(func() { e.a.p.soon(e.wrapUp) }) })
	})
}

// wrapUp writes the end of the end.
func (e *appEnd) wrapUp() {
	if e.closed {
		return
	}
	e.closed = true
	a := e.a
	if i := slices.Index(a.ends, e); i >= 0 {
		a.ends = slices.Delete(a.ends, i, i+1)
	}
	how := history.HowClose
	if e.failed != "" {
		how = e.failed
	}
	e.put(&history.Closed{ConnEnd: e.id, How: how})
	if w := e.window; w != nil {
		e.window, w.mem.stored = nil, nil
		if p := e.s.n.p; p.leaving && !p.dead { // it completes what is under way
			a.p.after(leaveTime, func() { a.bury(w) })
		} else {
			a.bury(w)
		}
	}
	if e.after != nil {
		e.after()
	}
}

func (e *appEnd) callOf(name string) history.Call {
	c := history.Call{Name: name, Peer: e.remote}
	if e.id.Conn != 0 {
		c.Conn, c.Side = e.id.Conn, e.id.Side
	}
	return c
}

// fail remembers how the connection ended: by the first call that failed,
// unless it was the application that ended it.
func (e *appEnd) fail(err error) {
	switch {
	case err == nil || e.failed != "" || status.Of(err) == status.Canceled:
	case errors.Is(err, io.EOF):
		e.failed = history.HowEOF
	default:
		e.failed = errnoName(err)
	}
}

// try makes a call that does not wait for the peer's application.
func (e *appEnd) try(name string, f func(done func(int64, error)), then func(int64, error)) {
	e.a.do(e.callOf(name), e, false, f, func(n int64, err error) {
		e.fail(err)
		then(n, err)
	})
}

// wait makes one that does.
func (e *appEnd) wait(name string, atOnce bool, f func(done func(int64, error)), then func(int64, error)) {
	c := e.callOf(name)
	c.Idle = true
	e.a.do(c, e, atOnce, f, func(n int64, err error) {
		e.fail(err)
		then(n, err)
	})
}

// send sends all of p.
func (e *appEnd) send(p []byte, then func(int64, error)) {
	e.wait("send", false, func(done func(int64, error)) {
		e.ep.send(p, func(n int, err error) { done(int64(n), err) })
	}, then)
}

// recv receives at most n bytes.
func (e *appEnd) recv(n int, then func(p []byte, err error)) {
	var got []byte
	e.wait("recv", false, func(done func(int64, error)) {
		e.ep.recv(n, func(p []byte, err error) {
			got = p
			done(int64(len(p)), err)
		})
	}, func(_ int64, err error) { then(got, err) })
}

// recvFull receives exactly n bytes behind those in p.
func (e *appEnd) recvFull(n int, p []byte, then func(p []byte, err error)) {
	e.recv(n-len(p), func(more []byte, err error) {
		p = append(p, more...)
		if err != nil || len(p) == n {
			then(p, err)
			return
		}
		e.recvFull(n, p, then)
	})
}

// probe makes a call towards a life that the application has just been told is
// removed: it has to fail.
func (e *appEnd) probe() {
	if e.closed {
		return
	}
	e.a.do(e.callOf("fence_mark"), e, true, func(done func(int64, error)) {
		e.ep.mark(fence.InitSelf, func(_ fence.Mark, err error) { done(0, err) })
	}, func(int64, error) {})
}
