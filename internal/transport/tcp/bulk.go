package tcp

import (
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// A bulk is one further connection of a session. It carries nothing but the
// bytes of large writes. One goroutine reads it; writers take turns.
type bulk struct {
	s              *session
	number         uint64 // the same at both ends
	conn           net.Conn
	rec            *recordConn // nil without TLS
	tls            *tls.Conn   // the same
	src            io.Reader
	sent, received atomic.Uint64 // bytes; without TLS only
	turn           chan struct{} // holds a token while somebody writes
	kept           kept          // what the peer may not have

	// Of the writer.
	head    []byte // a frame's header and what lies before its payload
	vectors [2][]byte
	buffers net.Buffers

	// Of the reader.
	position uint64 // the bytes of whole frames that have come, with headers
	told     uint64 // the position that the peer knows
	spill    []byte // memory for bytes whose lane has no reader that waits
	misses   int    // times in a row that a lane's reader did not come back soon

	cut     bool // an interrupt of the writer is under way; guarded by the session's mu
	stopped bool // the same of the reader; guarded by the mu of the lane that it fills

	readEnded bool // the peer was told what came, for the last time; guarded by the session's mu

	lost chan struct{} // closed, with the session's mu held, when the peer has said what it got
}

const (
	spillSize  = 32 << 10
	bulkBuffer = 64 << 10 // of the socket's bytes, with TLS
	headBuffer = 4 << 10  // the same without TLS: headers only
	// ackEvery is after how many bytes the peer is told that they have come.
	ackEvery = 512 << 10
)

// newBulk returns a bulk connection of s over conn, with TLS over rec if that is
// not nil.
func newBulk(s *session, number uint64, conn net.Conn, rec *recordConn, secure *tls.Conn) *bulk {
	b := &bulk{s: s, number: number, conn: conn, rec: rec, tls: secure, turn: make(chan struct{}, 1),
		lost: make(chan struct{}), spill: make([]byte, spillSize)}
	if secure != nil {
		rec.gathers = true
		b.src = secure
	} else {
		b.src = &headReader{b: b, buf: make([]byte, headBuffer)}
	}
	return b
}

// A headReader reads ahead as much as a header and little more, so that payload
// goes from the socket straight to where it belongs.
type headReader struct {
	b          *bulk
	buf        []byte
	start, end int
}

func (r *headReader) Read(p []byte) (int, error) {
	if r.start == r.end && len(p) >= len(r.buf) {
		n, err := r.b.conn.Read(p)
		r.b.received.Add(uint64(n))
		return n, err
	}
	if r.start == r.end {
		n, err := r.b.conn.Read(r.buf)
		r.b.received.Add(uint64(n))
		if r.start, r.end = 0, n; n == 0 {
			return 0, err
		}
	}
	n := copy(p, r.buf[r.start:r.end])
	r.start += n
	return n, nil
}

// send sends v, which was reserved at offset at, and ends the turn of l, whose
// writer has it. If it is interrupted, a goroutine goes on with a copy; if the
// connection is cut, another one takes over.
func (b *bulk) send(l *sendLane, at uint64, v vector) error {
	frame := copyFrame(l.id, at, v)
	if !b.kept.add(frame) {
		b.give(l)
		return b.s.sendAgain([]keptFrame{frame})
	}
	h := header{kind: typeData, length: uint32(v.len()), lane: l.id, value: at}
	b.head = append(h.appendTo(b.head[:0]), v.a...)
	rest, err := b.write(v.b)
	if err != nil || len(rest) == 0 {
		b.give(l)
		if err != nil {
			b.cutOff(err)
		}
		return nil
	}
	b.release(l)
	if !b.s.spawn(func() { b.finish(rest) }) {
		return b.s.Err()
	}
	return nil
}

// write writes b.head and p. rest is what an interrupt has left, in memory that
// nobody else uses.
func (b *bulk) write(p []byte) (rest []byte, err error) {
	if b.tls != nil {
		return b.writeRecords(p)
	}
	b.vectors = [2][]byte{b.head, p}
	b.buffers = b.vectors[:]
	n, err := b.buffers.WriteTo(b.conn)
	b.sent.Add(uint64(n))
	if err == nil {
		return nil, nil
	}
	if !isInterrupt(err) {
		return nil, err
	}
	for _, v := range b.buffers { // what was written is not there any more
		rest = append(rest, v...)
	}
	return rest, nil
}

func (b *bulk) writeRecords(p []byte) (rest []byte, err error) {
	if _, err = b.tls.Write(b.head); err == nil && len(p) > 0 {
		_, err = b.tls.Write(p)
	}
	if err == nil {
		err = b.rec.flush()
	}
	if err != nil || !b.rec.gone {
		return nil, err
	}
	return b.rec.out, nil
}

// finish writes what an interrupt has left and ends the turn.
func (b *bulk) finish(rest []byte) {
	_, err := b.conn.Write(rest)
	if b.rec != nil {
		b.rec.gone, b.rec.out = false, nil
	}
	<-b.turn
	if err != nil {
		b.cutOff(err)
	}
}

// release undoes that l's writer can be interrupted.
func (b *bulk) release(l *sendLane) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	l.writing = nil
	if b.cut {
		b.cut = false
		// It fails only where the connection has ended.
		_ = b.conn.SetWriteDeadline(time.Time{})
	}
}

// give ends the turn of l's writer.
func (b *bulk) give(l *sendLane) {
	b.release(l)
	<-b.turn
}

// interruptWrite makes the writer's call return. The session's mu is held.
func (b *bulk) interruptWrite() {
	if !b.cut {
		b.cut = true
		_ = b.conn.SetWriteDeadline(longAgo) // as release
	}
}
