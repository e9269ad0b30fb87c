package tcp

import (
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"syscall"
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
	ahead          *headReader   // the same without TLS; else nil
	sent, received atomic.Uint64 // bytes; without TLS only
	turn           chan struct{} // holds a token while somebody writes
	kept           kept          // what the peer may not have

	// Of the writer.
	vectors [][]byte    // memory for buffers
	buffers net.Buffers // what is left of a frame
	wrote   lookout

	// Of the reader.
	position uint64 // the bytes of whole frames that have come, with headers
	told     uint64 // the position that the peer knows
	ackAt    uint64 // the end of the frame that is being read, if its sender waits to hear of it; else 0
	spill    []byte // memory for bytes whose lane has no reader that waits
	looked   lookout
	misses   int // times in a row that a lane's reader did not come back soon

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
	// heldMin is the shortest frame whose payload is held instead of copied, in
	// bytes. The peer acknowledges it before anybody gets its last byte.
	heldMin = ackEvery
)

// newBulk returns a bulk connection of s over conn, with TLS over rec if that is
// not nil.
func newBulk(s *session, number uint64, conn net.Conn, rec *recordConn, secure *tls.Conn) *bulk {
	b := &bulk{s: s, number: number, conn: conn, rec: rec, tls: secure, turn: make(chan struct{}, 1),
		lost: make(chan struct{}), spill: make([]byte, spillSize)}
	if secure != nil {
		rec.gathers, rec.glance = true, b.glanceAside
		b.src = secure
	} else {
		b.ahead = newHeadReader(b)
		b.src = b.ahead
	}
	return b
}

// A headReader reads ahead as much as a header and little more, so that payload
// goes from the socket straight to where it belongs.
type headReader struct {
	b          *bulk
	buf        []byte
	start, end int

	raw     syscall.RawConn // nil: the socket cannot be asked
	attempt func(uintptr) bool
	err     error // that hasMore met: a socket tells it once
}

func newHeadReader(b *bulk) *headReader {
	r := &headReader{b: b, buf: make([]byte, headBuffer), raw: rawConn(b.conn)}
	r.attempt = func(fd uintptr) bool {
		r.start = 0
		r.end, r.err = readNow(fd, r.buf)
		b.received.Add(uint64(r.end))
		return true
	}
	return r
}

// hasMore reports whether there is something to read, and does not wait for it.
func (r *headReader) hasMore() bool {
	if r.start == r.end && r.raw != nil && r.err == nil {
		_ = r.raw.Read(r.attempt) // it fails only where Read fails too
	}
	return r.start < r.end
}

func (r *headReader) Read(p []byte) (int, error) {
	if r.start == r.end && r.err != nil {
		return 0, r.err
	}
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

// send sends the next n bytes of g, which were reserved at offset at, and ends the
// turn of l, whose writer has it. If it is interrupted, a goroutine goes on with a
// copy; if the connection is cut, another one takes over.
func (b *bulk) send(l *sendLane, at uint64, n int, g *gather) error {
	s := newSheaf(header{kind: typeData, length: uint32(n), lane: l.id, value: at}, g)
	defer s.free()
	frame := keepFrame(l.id, at, n, s)
	if !b.kept.add(frame) {
		b.give(l)
		return b.s.sendAgain([]keptFrame{frame})
	}
	rest, err := b.write(s.slices)
	canceled := b.release(l)
	if canceled && s.hold != nil {
		freeAll(b.s.detach(l)) // Cancel may not have seen the frame
	}
	if err != nil || len(rest) == 0 {
		<-b.turn
		if err != nil {
			b.cutOff(err)
		}
		return nil
	}
	if !b.s.spawn(func() { b.finish(rest) }) {
		return b.s.Err()
	}
	return nil
}

// write writes slices. rest is what an interrupt has left, in memory that nobody
// else uses.
func (b *bulk) write(slices [][]byte) (rest []byte, err error) {
	if b.tls != nil {
		return b.writeRecords(slices)
	}
	b.vectors = append(b.vectors[:0], slices...)
	b.buffers = b.vectors
	beforeWritev()
	n, err := b.buffers.WriteTo(b.conn)
	b.sent.Add(uint64(n))
	if err != nil && isInterrupt(err) {
		for _, v := range b.buffers { // what was written is not there any more
			rest = append(rest, v...)
		}
		err = nil
	}
	clear(b.vectors)
	b.glanceAside()
	return rest, err
}

func (b *bulk) writeRecords(slices [][]byte) (rest []byte, err error) {
	for _, p := range slices {
		if _, err := b.tls.Write(p); err != nil {
			return nil, err
		}
	}
	return b.rec.flush()
}

// finish writes what an interrupt has left and ends the turn.
func (b *bulk) finish(rest []byte) {
	n, err := b.conn.Write(rest)
	if b.rec != nil {
		b.rec.proceed(n)
	}
	<-b.turn
	if err != nil {
		b.cutOff(err)
	}
}

// release undoes that l's writer can be interrupted, and reports whether the lane
// was canceled.
func (b *bulk) release(l *sendLane) (canceled bool) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	l.writing = nil
	if b.cut {
		b.cut = false
		// It fails only where the connection has ended.
		_ = b.conn.SetWriteDeadline(time.Time{})
	}
	return l.canceled
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
