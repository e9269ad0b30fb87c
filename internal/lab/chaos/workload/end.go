package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// What a connection is for: the first byte that its client sends.
const (
	kindStream byte = 'S' // messages in both directions
	kindRMA    byte = 'R' // operations in both directions
	kindShort  byte = 'C' // one exchange, then an orderly close
	kindParked byte = 'P' // calls that wait
)

// The greetings. The client sends kind, a zero, its life and the nonce; the
// server answers with two zeros and its life. Positions of a connection's bytes
// are counted behind them.
const (
	helloSize  = 16
	answerSize = 8
)

// An end is one end of a connection.
type end struct {
	s      *session
	kind   byte
	conn   *fabric.Conn
	ep     *fabric.Endpoint
	id     history.ConnEnd
	local  fabric.Life
	remote fabric.Life

	ctx    context.Context // done when the application ends or one of the end's goroutines has failed
	cancel context.CancelFunc
	failed atomic.Pointer[string] // how the first call failed: of the end's own goroutines
	window atomic.Pointer[window] // that the peer writes to; nil: none
}

// dial connects to peer and greets it; nil if that failed.
func (s *session) dial(slot int, kind byte) *end {
	peer := s.app.nodeOf(slot)
	call := s.app.calls.begin(history.Call{Name: "connect"}, true)
	conn, err := s.node.DialAddr(s.ctx, fabric.Addr{Node: peer, Port: Port})
	s.app.calls.end(call, 0, err)
	if err != nil {
		return nil
	}
	e := &end{s: s, kind: kind, conn: conn, ep: conn.Endpoint(), id: history.ConnEnd{Conn: s.app.nonce(), Side: history.Client}}
	// The life is asked for after the connection was made, and the connection
	// used after it was asked for: so it is the connection's.
	e.local = s.node.Life()
	hello := make([]byte, helloSize)
	hello[0] = kind
	putLife(hello[2:], e.local)
	binary.BigEndian.PutUint64(hello[8:], e.id.Conn)
	answer := make([]byte, answerSize)
	if _, err = e.send(hello); err == nil {
		_, err = e.recv(answer)
	}
	e.remote = lifeIn(answer[2:])
	if err != nil || !e.plausible(peer) {
		conn.Close()
		return nil
	}
	e.open()
	return e
}

// welcome greets who has connected; nil if that failed.
func (s *session) welcome(conn *fabric.Conn) *end {
	e := &end{s: s, conn: conn, ep: conn.Endpoint(), id: history.ConnEnd{Side: history.Server}}
	hello := make([]byte, helloSize)
	if _, err := e.recv(hello); err != nil {
		conn.Close()
		return nil
	}
	e.kind = hello[0]
	e.remote = lifeIn(hello[2:])
	e.id.Conn = binary.BigEndian.Uint64(hello[8:])
	e.local = s.node.Life()
	answer := make([]byte, answerSize)
	putLife(answer[2:], e.local)
	if _, err := e.send(answer); err != nil || e.id.Conn == 0 || !e.plausible(conn.RemoteAddr().(fabric.Addr).Node) {
		conn.Close()
		return nil
	}
	e.open()
	return e
}

func putLife(p []byte, l fabric.Life) {
	binary.BigEndian.PutUint16(p, uint16(l.Node))
	binary.BigEndian.PutUint32(p[2:], uint32(l.Generation))
}

func lifeIn(p []byte) fabric.Life {
	return fabric.Life{
		Node:       fabric.NodeID(binary.BigEndian.Uint16(p)),
		Generation: fabric.Generation(binary.BigEndian.Uint32(p[2:])),
	}
}

// plausible reports whether the greeting is one of our peer's.
func (e *end) plausible(peer fabric.NodeID) bool {
	return e.local.Generation != 0 && e.remote.Generation != 0 && e.remote.Node == peer
}

// nonce returns a number that no other connection of the run has.
func (a *App) nonce() uint64 {
	n := a.nonces.Add(1)
	return mix(a.c.Seed^uint64(a.c.Slot)<<48^uint64(a.c.Run)<<32^n) | 1
}

// open writes that the end is connected. The greetings have been written and
// read: nobody else knows the connection yet.
func (e *end) open() {
	e.ctx, e.cancel = context.WithCancel(e.s.ctx)
	e.s.app.log.Put(&history.Opened{ConnEnd: e.id, Local: e.local, Remote: e.remote,
		LocalPort: uint16(e.conn.LocalAddr().(fabric.Addr).Port), RemotePort: uint16(e.conn.RemoteAddr().(fabric.Addr).Port)})
	e.s.app.known.add(e.id.Conn, e)
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.s.ends[e] = struct{}{}
}

// run does what the connection is for, until it ends, and closes it.
func (e *end) run() {
	defer e.cancel()
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
	e.close()
}

// close closes the end and writes how it ended.
func (e *end) close() {
	e.s.mu.Lock()
	delete(e.s.ends, e)
	e.s.mu.Unlock()
	w := e.window.Swap(nil)
	if w != nil && e.failed.Load() == nil && !e.s.abrupt.Load() {
		e.try("unregister", func() error { return e.ep.Unregister(w.offset, int64(len(w.bytes))) })
	}
	call := e.begin("close", false)
	err := e.conn.Close()
	e.end(call, 0, err)
	how := history.HowClose
	if f := e.failed.Load(); f != nil {
		how = *f
	}
	e.s.app.log.Put(&history.Closed{ConnEnd: e.id, How: how})
	if w != nil {
		e.s.app.graves.bury(w, e.s.graceOf())
	}
}

// paced waits for the next step of a loop that makes the connection's traffic;
// false: the connection, or the application, is about to end.
func (e *end) paced(p *pacer) bool { return p.wait(e.ctx.Done(), e.s.over) }

// linger waits, if nothing has failed, until the connection is to be closed:
// nothing new is begun, but the peer may not have been told yet.
func (e *end) linger() {
	if e.failed.Load() == nil {
		<-e.ctx.Done()
	}
	e.cancel()
}

// begin tells of a call on this connection.
func (e *end) begin(name string, atOnce bool) *openCall {
	return e.s.app.calls.begin(e.call(name), atOnce)
}

func (e *end) call(name string) history.Call {
	c := history.Call{Name: name, Peer: e.remote}
	if e.id.Conn != 0 {
		c.Conn, c.Side = e.id.Conn, e.id.Side
	}
	return c
}

// end tells of its return. The first failure is how the connection ends, unless
// it is the application that ends.
func (e *end) end(o *openCall, n int, err error) {
	e.s.app.calls.end(o, n, err)
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	how := statusOf(err)
	if errors.Is(err, io.EOF) {
		how = history.HowEOF
	}
	e.failed.CompareAndSwap(nil, &how)
}

// try makes a call that does not wait for the peer's application.
func (e *end) try(name string, f func() error) error {
	call := e.begin(name, false)
	err := f()
	e.end(call, 0, err)
	return err
}

// send sends all of p. It may wait for the peer to receive.
func (e *end) send(p []byte) (int, error) {
	c := e.call("send")
	c.Idle = true
	call := e.s.app.calls.begin(c, false)
	n, err := e.ep.Send(e.context(), p)
	e.end(call, n, err)
	return n, err
}

// recv fills p. It waits for the peer to send.
func (e *end) recv(p []byte) (int, error) {
	c := e.call("recv")
	c.Idle = true
	call := e.s.app.calls.begin(c, false)
	n, err := e.ep.Recv(e.context(), p)
	e.end(call, n, err)
	return n, err
}

// context is what calls of this end are bounded by: the greetings, which come
// before open, by the application's life.
func (e *end) context() context.Context {
	if e.ctx != nil {
		return e.ctx
	}
	return e.s.ctx
}

// probe makes a call towards a life that the application has just been told is
// removed: it has to fail.
func (e *end) probe() {
	call := e.begin("fence_mark", true)
	_, err := e.ep.FenceMark(fabric.InitSelf)
	e.s.app.calls.end(call, 0, err)
}

// put writes a record of this end.
func (e *end) put(b history.Body) { e.s.app.log.Put(b) }
