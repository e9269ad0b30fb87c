package tcp

import (
	"fmt"
	"io"
	"runtime"
	"time"
)

// read is the connection's reader. Its last word tells the peer what has come.
func (b *bulk) read() {
	var head [headerLen]byte
	for {
		_, err := io.ReadFull(b.src, head[:])
		if err == nil {
			err = b.readFrame(head[:])
		}
		if err != nil {
			b.cutOff(err)
			b.readOver()
			return
		}
		if b.position-b.told >= ackEvery {
			b.acknowledge(b.position)
		}
		b.settle()
	}
}

// acknowledge tells the peer that what is before position has come: before
// whatever is said from now on, and soon.
func (b *bulk) acknowledge(position uint64) {
	b.told = position
	b.s.putOff(header{kind: typeAck, lane: b.number, value: position})
}

// settle says what acknowledge has put off, unless there is more to read, whose end
// brings it here again. Who has got the last bytes is likely to have an answer to
// them, which takes it along: he gets a few chances.
func (b *bulk) settle() {
	for chances := answerSoon; b.s.owes.Load() && !b.hasMore(); chances-- {
		if chances == 0 {
			b.s.settle()
			return
		}
		runtime.Gosched()
	}
}

// hasMore reports whether the next frame begins to come.
func (b *bulk) hasMore() bool {
	if b.ahead != nil {
		return b.ahead.hasMore()
	}
	return b.rec.hasMore()
}

// readFrame handles one frame, of which head has come. If the connection ends
// inside it, position says how far it came.
func (b *bulk) readFrame(head []byte) error {
	h, err := parseHeader(head, maxPiece)
	if err == nil && (h.kind != typeData || h.flags != 0) {
		err = fmt.Errorf("%w: type %d, flags %d on a bulk connection", errMalformed, h.kind, h.flags)
	}
	if err != nil {
		return err
	}
	n, err := b.receive(h)
	if n > 0 {
		b.position += headerLen + uint64(n)
	}
	return err
}

// receive puts the bytes of one frame in place and returns how many have come.
// The others will be announced again.
func (b *bulk) receive(h header) (int, error) {
	l, err := b.s.laneOpened(h.lane)
	if err != nil {
		return 0, err
	}
	if err := b.s.allowed.add(int(h.length)); err != nil {
		return 0, err
	}
	l.mu.Lock()
	err = l.admit(h)
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if b.ackAt = 0; h.length >= heldMin {
		b.ackAt = b.position + headerLen + uint64(h.length)
	}
	done := 0
	for err == nil && done < int(h.length) {
		var n int
		n, err = b.receiveSome(l, h.value+uint64(done), int(h.length)-done)
		done += n
	}
	if rest := int(h.length) - done; rest > 0 {
		b.s.allowed.takeBack(rest)
		l.mu.Lock()
		l.asm.retract(h.value+uint64(done), h.value+uint64(h.length))
		l.mu.Unlock()
	}
	return done, err
}

// receiveSome reads some of the left bytes at offset at: straight to the reader
// that waits for them, else through memory of its own.
func (b *bulk) receiveSome(l *recvLane, at uint64, left int) (int, error) {
	if p := b.await(l, at); p != nil {
		return b.fill(l, p[:min(left, len(p))], left)
	}
	n, err := b.src.Read(b.spill[:min(left, len(b.spill))])
	b.arrived(n, left)
	if n > 0 {
		l.spilled(at, b.spill[:n])
	}
	if n > 0 || isInterrupt(err) { // an interrupt that was meant for fill
		err = nil
	}
	return n, err
}

// arrived says that n of the left bytes of a frame are here, and that nobody has
// got them yet. If these are the last ones of a frame that the peer holds in its
// memory, they are acknowledged now: whatever anybody here says when he has got
// them, the peer hears this before.
func (b *bulk) arrived(n, left int) {
	if n == left && b.ackAt > 0 {
		b.acknowledge(b.ackAt)
	}
}

// A reader that was just woken comes back for more: it gets backSoon chances,
// but after tooOften times without it only one.
const (
	backSoon   = 64
	tooOften   = 4
	answerSoon = 8
)

// await is claim with a little patience.
func (b *bulk) await(l *recvLane, at uint64) []byte {
	chances := backSoon
	if b.misses >= tooOften {
		chances = 1
	}
	p := b.claim(l, at)
	for ; p == nil && chances > 0; chances-- {
		runtime.Gosched()
		p = b.claim(l, at)
	}
	if b.misses++; p != nil {
		b.misses = 0
	}
	return p
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
// wants it back. left bytes of the frame are still to come.
func (b *bulk) fill(l *recvLane, p []byte, left int) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = b.src.Read(p[n:])
		n += k
		b.glanceAhead()
	}
	b.arrived(n, left)
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
	if !l.isFar() {
		l.far.Add(1)
	}
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
