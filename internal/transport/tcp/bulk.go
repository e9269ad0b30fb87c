package tcp

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A bulk is one further connection of a session. It carries nothing but the
// bytes of large writes. One goroutine reads it; writers take turns.
type bulk struct {
	s              *session
	conn           net.Conn
	rec            *recordConn // nil without TLS
	tls            *tls.Conn   // the same
	src            io.Reader
	sent, received atomic.Uint64 // bytes; without TLS only
	turn           chan struct{} // holds a token while somebody writes

	// Of the writer.
	head    [headerLen]byte
	vectors [2][]byte
	buffers net.Buffers

	cut     bool // an interrupt of the writer is under way; guarded by the session's mu
	stopped bool // the same of the reader; guarded by the mu of the lane that it fills

	spill []byte // memory for bytes whose lane has no reader that waits
}

const (
	spillSize  = 32 << 10
	bulkBuffer = 64 << 10 // of the socket's bytes, with TLS
	headBuffer = 4 << 10  // the same without TLS: headers only
)

// newBulk returns a bulk connection of s over conn, with TLS over rec if that is
// not nil.
func newBulk(s *session, conn net.Conn, rec *recordConn, secure *tls.Conn) *bulk {
	b := &bulk{s: s, conn: conn, rec: rec, tls: secure, turn: make(chan struct{}, 1), spill: make([]byte, spillSize)}
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

// send sends bytes that were reserved at offset at and ends the turn of l, whose
// writer has it. If it is interrupted, a goroutine goes on with a copy.
func (b *bulk) send(l *sendLane, at uint64, p []byte) error {
	h := header{kind: typeData, length: uint32(len(p)), lane: l.id, value: at}
	h.appendTo(b.head[:0])
	rest, err := b.write(p)
	if err != nil {
		b.give(l)
		b.broken(err)
		<-b.s.done
		return b.s.Err()
	}
	if len(rest) == 0 {
		b.give(l)
		return nil
	}
	b.release(l)
	if !b.s.spawn(func() { b.finish(rest) }) {
		return b.s.Err()
	}
	return nil
}

// write writes head and p. rest is what an interrupt has left, in memory that
// nobody else uses.
func (b *bulk) write(p []byte) (rest []byte, err error) {
	if b.tls != nil {
		return b.writeRecords(p)
	}
	b.vectors = [2][]byte{b.head[:], p}
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
	if _, err = b.tls.Write(b.head[:]); err == nil {
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
		b.broken(err)
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

// bulkGrace is how long a session outlives a bulk connection, so that a CLOSE
// which is under way on the first connection says why.
const bulkGrace = time.Second

// broken ends the session: bytes were lost with the connection.
func (b *bulk) broken(err error) {
	end := closeError(err)
	b.s.spawn(func() {
		if end.Reset || end.Timeout {
			t := time.NewTimer(bulkGrace)
			defer t.Stop()
			select {
			case <-b.s.done:
			case <-t.C:
			}
		}
		b.s.finish(end)
	})
}

// read is the connection's reader.
func (b *bulk) read() {
	var head [headerLen]byte
	for {
		if _, err := io.ReadFull(b.src, head[:]); err != nil {
			b.broken(err)
			return
		}
		h, err := parseHeader(head[:], maxPiece)
		if err == nil && (h.kind != typeData || h.flags != 0) {
			err = fmt.Errorf("%w: type %d, flags %d on a bulk connection", errMalformed, h.kind, h.flags)
		}
		if err == nil {
			err = b.receive(h)
		}
		if err != nil {
			b.broken(err)
			return
		}
	}
}

// receive puts the bytes of one frame in place.
func (b *bulk) receive(h header) error {
	l, err := b.s.laneOpened(h.lane)
	if err != nil {
		return err
	}
	if err := b.s.count(int(h.length)); err != nil {
		return err
	}
	l.mu.Lock()
	err = l.admit(h)
	l.mu.Unlock()
	at, left := h.value, int(h.length)
	for err == nil && left > 0 {
		var n int
		n, err = b.receiveSome(l, at, left)
		at, left = at+uint64(n), left-n
	}
	return err
}

// receiveSome reads some of the left bytes at offset at: straight to the reader
// that waits for them, else through memory of its own.
func (b *bulk) receiveSome(l *recvLane, at uint64, left int) (int, error) {
	p := b.claim(l, at)
	if p == nil {
		runtime.Gosched() // a reader that was just woken comes back for more
		p = b.claim(l, at)
	}
	if p != nil {
		return b.fill(l, p[:min(left, len(p))])
	}
	n, err := b.src.Read(b.spill[:min(left, len(b.spill))])
	if n > 0 {
		l.spilled(at, b.spill[:n])
	}
	if n > 0 || isInterrupt(err) { // an interrupt that was meant for fill
		err = nil
	}
	return n, err
}

// claim returns the memory of a reader that waits for the bytes at offset at, nil
// if there is none. fill gives it back.
func (b *bulk) claim(l *recvLane, at uint64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.want == nil || l.dead() || l.filler != nil || l.filled == len(l.want) || at != l.asm.next || l.asm.readable() > 0 {
		return nil
	}
	l.filler = b
	return l.want[l.filled:]
}

// fill reads to p, which is memory of l's reader, until it is full or the reader
// wants it back.
func (b *bulk) fill(l *recvLane, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = b.src.Read(p[n:])
		n += k
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filler = nil
	if b.stopped {
		b.stopped = false
		_ = b.conn.SetReadDeadline(time.Time{}) // it fails only where the connection has ended
	}
	if isInterrupt(err) {
		err = nil
	}
	l.filled += n
	l.got += uint64(n)
	if n > 0 {
		l.asm.skip(n)
	}
	l.show(nil)
	if l.over() {
		l.s.retireSoon(l)
	}
	return n, err
}

// interrupt makes fill return. The mu of the lane that it fills is held.
func (b *bulk) interrupt(l *recvLane) {
	if l.filler == b && !b.stopped {
		b.stopped = true
		_ = b.conn.SetReadDeadline(longAgo) // as in fill
	}
}

// spilled takes bytes that were announced, which the lane's reader did not wait
// for.
func (l *recvLane) spilled(at uint64, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got += uint64(len(p))
	if l.dead() {
		l.asm.drop(at, len(p))
		l.s.dropped(len(p))
		if l.over() {
			l.s.retireSoon(l)
		}
		return
	}
	l.asm.put(at, p)
	if l.asm.readable() > 0 {
		l.show(nil)
	}
}

// laneOpened returns a lane of the peer. Its first frame is on the first
// connection, which is never held up: laneOpened waits for it.
func (s *session) laneOpened(id uint64) (*recvLane, error) {
	for {
		s.mu.Lock()
		switch l := s.lanesIn[id]; {
		case s.err != nil:
			defer s.mu.Unlock()
			return nil, s.err
		case l != nil:
			s.mu.Unlock()
			return l, nil
		case id <= s.lastIn || id > s.lanesTold:
			s.mu.Unlock()
			return nil, fmt.Errorf("%w: bulk bytes of lane %d, which is not open", errMalformed, id)
		}
		if s.opened == nil {
			s.opened = make(chan struct{})
		}
		opened := s.opened
		s.mu.Unlock()
		<-opened // closed at the end of the session too
	}
}

// A bulkState is what a session knows of its bulk connections. Guarded by its mu.
type bulkState struct {
	conns   []*bulk
	dialing int       // connections that are being dialed
	tokens  []token   // given to the dialer and not used
	asked   time.Time // when the last one was asked for
	closed  bool
}

// A token lets the dialer bind one connection.
type token struct {
	secret  [tokenLen]byte
	expires time.Time
}

const (
	tokenLife = 10 * time.Second
	askEvery  = time.Second // between two attempts to get another connection
)

// close closes all connections.
func (st *bulkState) close() {
	st.closed, st.tokens = true, nil
	for _, b := range st.conns {
		_ = b.conn.Close()
	}
}

// traffic returns the bytes of all connections.
func (st *bulkState) traffic() (sent, received uint64) {
	for _, b := range st.conns {
		sent, received = sent+b.sent.Load(), received+b.received.Load()
		if b.rec != nil {
			sent, received = sent+b.rec.sent.Load(), received+b.rec.received.Load()
		}
	}
	return sent, received
}

// takeBulk gives l's writer a turn on a bulk connection. It returns nil if there
// is none, and sees to it that there will be one.
func (s *session) takeBulk(l *sendLane) (*bulk, error) {
	for {
		s.mu.Lock()
		if err := l.failure(); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if l.id == 0 || s.maxBulk == 0 { // the first frame of a lane is on the first connection
			s.mu.Unlock()
			return nil, nil
		}
		st := &s.bulk
		var first *bulk
		for i := range st.conns {
			b := st.conns[(int(l.id)+i)%len(st.conns)]
			if first == nil {
				first = b
			}
			select {
			case b.turn <- struct{}{}:
				l.writing = b
				s.mu.Unlock()
				return b, nil
			default:
			}
		}
		s.wantBulk()
		s.mu.Unlock()
		if first == nil {
			return nil, nil
		}
		select {
		case first.turn <- struct{}{}:
			s.mu.Lock()
			l.writing = first
			err := l.failure()
			s.mu.Unlock()
			if err != nil {
				first.give(l)
				return nil, err
			}
			return first, nil
		case <-l.wake:
		}
	}
}

// wantBulk tries to get another connection, now and then. mu is held.
func (s *session) wantBulk() {
	st := &s.bulk
	if s.err != nil || len(st.conns)+st.dialing+len(st.tokens) >= s.maxBulk && len(st.tokens) == 0 ||
		!st.asked.IsZero() && time.Since(st.asked) < askEvery {
		return
	}
	st.asked = time.Now()
	if s.dialed {
		s.spawn(func() { s.say(header{kind: typeWant}) })
		return
	}
	s.spawn(func() { s.giveToken() })
}

// onWant handles the dialer's question for a token.
func (s *session) onWant() error {
	if s.dialed {
		return fmt.Errorf("%w: WANT from the accepter", errMalformed)
	}
	s.giveToken()
	return nil
}

// giveToken lets the dialer bind another connection, if there may be one.
func (s *session) giveToken() {
	t, err := newToken()
	if err != nil {
		return // no randomness: no further connections
	}
	s.mu.Lock()
	st := &s.bulk
	now := time.Now()
	for len(st.tokens) > 0 && now.After(st.tokens[0].expires) {
		st.tokens = st.tokens[1:]
	}
	if s.err != nil || len(st.conns)+len(st.tokens) >= s.maxBulk {
		s.mu.Unlock()
		return
	}
	st.tokens = append(st.tokens, t)
	s.mu.Unlock()
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	_ = s.send(header{kind: typeToken, length: tokenLen, value: s.number}, t.secret[:])
}

// onToken dials another connection.
func (s *session) onToken(number uint64, secret []byte) error {
	if !s.dialed {
		return fmt.Errorf("%w: TOKEN from the dialer", errMalformed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.bulk.conns)+s.bulk.dialing >= s.maxBulk {
		return nil
	}
	at := binding{session: number}
	copy(at.token[:], secret)
	s.bulk.dialing++
	s.spawn(func() { s.dialBulk(at) })
	return nil
}

// addBulk takes a connection into use. It reports false if the session is over
// or has enough.
func (s *session) addBulk(b *bulk) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.bulk.closed || len(s.bulk.conns) >= s.maxBulk {
		return false
	}
	if !s.spawn(b.read) {
		return false
	}
	s.bulk.conns = append(s.bulk.conns, b)
	s.bulk.asked = time.Time{}
	return true
}

var _ transport.Meter = (*session)(nil)
