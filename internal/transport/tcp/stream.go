package tcp

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
)

// watch reads the first connection when no reader has wanted to for a moment.
// It ends with the session.
func (s *session) watch() {
	nap := time.NewTimer(watchEvery)
	defer nap.Stop()
	var uses uint64
	for {
		taken, soon, now := s.helm.watch(uses)
		uses = now
		switch {
		case taken:
			s.lead(nil)
			s.helm.unwatch(s.frames.Load())
		case !soon:
			select {
			case <-s.helm.alarm:
			case <-s.done:
			}
		}
		select {
		case <-s.done:
			return
		default:
		}
		nap.Reset(watchEvery)
		select {
		case <-nap.C:
		case <-s.helm.alarm:
		case <-s.done:
			return
		}
	}
}

// lead reads the first connection until l has something to see, or, for a guest and
// the watch, until a waiting reader was woken, or until the helm is to be left. It
// leaves no whole frame unhandled. The caller has the helm.
func (s *session) lead(l *hand) {
	s.woke = false
	for {
		err := s.handleFrames(l)
		if err != nil {
			s.finish(closeError(err))
			return
		}
		if s.ended() {
			return
		}
		if s.satisfied(l) && !s.rec.hasMore() {
			return
		}
		s.flush()
		switch err := s.readMore(l); {
		case err == nil:
		case !isInterrupt(err):
			s.finish(closeError(err))
			return
		case !s.helm.goesOn():
			return
		}
	}
}

// satisfied reports whether l, or the watch, has what it reads for. A reader that
// was woken takes the helm itself, and may have what a guest waits for.
func (s *session) satisfied(l *hand) bool {
	if l != nil && l.lane != nil {
		return l.lane.ready.Load()
	}
	return s.woke || l != nil && len(l.answer) > 0
}

// Help implements transport.Helper.
func (s *session) Help(done chan struct{}) {
	g, ok := s.guests.Get().(*hand)
	if !ok {
		g = &hand{wake: make(chan struct{}, 1)}
	}
	g.answer = done
	s.flush()
	taken, answered := s.helm.visit(g, s.frames.Load(), s.done)
	if taken && len(done) == 0 {
		s.lead(g)
	}
	s.helm.part(g, answered || len(done) > 0, s.frames.Load())
	if answered {
		notify(done) // the caller's
	}
	g.answer = nil
	s.guests.Put(g)
}

// Rouse implements transport.Helper.
func (s *session) Rouse() { s.helm.rouse() }

func (s *session) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// readMore reads, or decrypts one record. l has the helm; nil: the watch.
func (s *session) readMore(l *hand) error {
	if s.socket.raw != nil && !s.rec.hasMore() {
		return s.socket.read(l)
	}
	n, err := s.conn.Read(s.room())
	s.end += n
	if n > 0 {
		return nil // an error that came with bytes comes again
	}
	return err
}

// room returns where the next bytes belong, at least as many as a frame has.
func (s *session) room() []byte {
	if s.start == s.end {
		s.start, s.end = 0, 0
	} else if len(s.in)-s.end < headerLen+maxSmall {
		s.end = copy(s.in, s.in[s.start:s.end])
		s.start = 0
	}
	return s.in[s.end:]
}

// handleFrames handles the whole frames that are there. holder has the helm; nil:
// the watch. The reader may be no goroutine of the session, so that a panic ends
// the session here.
func (s *session) handleFrames(holder *hand) error {
	defer guard.Recover(s.panicked)
	var caller *recvLane
	if holder != nil {
		caller = holder.lane
	}
	for s.end-s.start >= headerLen {
		h, err := parseHeader(s.in[s.start:s.end], maxSmall)
		if err != nil {
			return err
		}
		n := headerLen + int(h.length)
		if s.end-s.start < n {
			return nil
		}
		body := s.in[s.start+headerLen : s.start+n]
		s.start += n
		if err := s.handle(h, body, caller); err != nil {
			return err
		}
	}
	return nil
}

// handle handles one frame of the first connection.
func (s *session) handle(h header, body []byte, caller *recvLane) error {
	frame := s.frames.Add(1)
	switch h.kind {
	case typeData:
		return s.onData(h, body, caller, frame)
	case typeReset:
		l, err := s.laneIn(h.lane, false)
		if err != nil {
			return err
		}
		return l.onReset(h.value)
	case typeStop:
		return s.onStop(h.lane)
	case typeCredit:
		return s.onCredit(h.lane, h.value)
	case typeLanes:
		return s.onLanes(h.value)
	case typeDatagram:
		select {
		case s.datagrams <- append(make([]byte, 0, len(body)), body...):
		default: // nobody receives them
		}
		return nil
	case typeClose:
		return &transport.CloseError{Remote: true, Code: h.value, Reason: bounded(string(body))}
	case typeWant:
		return s.onWant()
	case typeToken:
		return s.onToken(h, body)
	case typeAck:
		return s.onAck(h.lane, h.value)
	case typeLost:
		return s.onLost(h.lane, h.value)
	}
	return fmt.Errorf("%w: type %d on the first connection", errMalformed, h.kind)
}

// onData handles data of the first connection.
func (s *session) onData(h header, body []byte, caller *recvLane, frame uint64) error {
	l := s.recent
	if l == nil || l.id != h.lane {
		var err error
		if l, err = s.laneIn(h.lane, true); err != nil {
			return err
		}
		s.recent = l
	}
	if err := s.allowed.add(len(body)); err != nil {
		return err
	}
	l.lastFrame.Store(frame)
	woken, err := l.deliver(h, body, caller)
	s.woke = s.woke || woken
	return err
}

// laneIn returns a lane of the peer. The first frame of a lane opens it, and if
// that shows then somebody can accept it.
func (s *session) laneIn(id uint64, shows bool) (*recvLane, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanesIn[id]; l != nil {
		return l, nil
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case id <= s.lastIn:
		return nil, fmt.Errorf("%w: lane %d is over", errMalformed, id)
	case id != s.lastIn+1:
		return nil, fmt.Errorf("%w: lane %d opened behind lane %d", errMalformed, id, s.lastIn)
	case id > s.lanesTold:
		return nil, fmt.Errorf("%w: lane %d, %d are allowed", errMalformed, id, s.lanesTold)
	}
	s.lastIn = id
	l := newRecvLane(s, id)
	s.lanesIn[id] = l
	if shows {
		s.queue = append(s.queue, l)
		notify(s.arrival)
	} else {
		l.accepted = true // nobody will
	}
	if s.opened != nil {
		close(s.opened)
		s.opened = nil
	}
	if s.owesLanes() {
		s.spawn(s.tellLanes)
	}
	return l, nil
}

// onStop handles the reader's cancel of a lane.
func (s *session) onStop(id uint64) error {
	s.mu.Lock()
	l := s.lanesOut[id]
	last := s.lastOut
	s.mu.Unlock()
	if l == nil {
		if id > last {
			return fmt.Errorf("%w: STOP of lane %d, which is not open", errMalformed, id)
		}
		return nil // it has ended meanwhile
	}
	l.Cancel()
	return nil
}

// onCredit raises the limit of a lane, or of the session.
func (s *session) onCredit(id, limit uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 0 {
		s.sendLimit = max(s.sendLimit, limit)
		s.wakeWritersLocked()
		return nil
	}
	l := s.lanesOut[id]
	if l == nil {
		if id > s.lastOut {
			return fmt.Errorf("%w: credit of lane %d, which is not open", errMalformed, id)
		}
		return nil
	}
	if limit > l.limit {
		l.limit = limit
		notify(l.wake)
	}
	return nil
}

// onLanes raises the limit of lanes.
func (s *session) onLanes(limit uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit > s.lanesMax {
		s.lanesMax = limit
		s.freePlaces()
	}
	return nil
}

// freePlaces wakes who waits in OpenLane. mu is held.
func (s *session) freePlaces() {
	if s.placeFree != nil {
		close(s.placeFree)
		s.placeFree = nil
	}
}

func (s *session) wakeWriters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeWritersLocked()
}

// wakeWritersLocked wakes the writers that wait for credit of the session or for
// the outlet. mu is held.
func (s *session) wakeWritersLocked() {
	for l := range s.waiting {
		notify(l.wake)
	}
}

// freed accounts for n bytes that a reader has taken. limit is the lane's new
// one, 0: it has not changed enough to tell. The reader calls it, and says the
// limit before it waits.
func (s *session) freed(l *recvLane, n int, limit uint64) {
	if limit > 0 {
		s.putOff(header{kind: typeCredit, lane: l.id, value: limit})
		l.owes = true
	}
	s.freedInAll(n)
}

// freedFor is freed for bytes that another goroutine took while the reader waits.
func (s *session) freedFor(l *recvLane, n int, limit uint64) {
	if limit > 0 {
		s.say(header{kind: typeCredit, lane: l.id, value: limit})
	}
	s.freedInAll(n)
}

// freedInAll accounts for n bytes in the session's credit.
func (s *session) freedInAll(n int) {
	if limit := s.allowed.free(n); limit > 0 {
		s.say(header{kind: typeCredit, value: limit})
	}
}

// dropped accounts for n bytes that nobody will take. It may be called with a
// recvLane's mu held.
func (s *session) dropped(n int) {
	if n == 0 {
		return
	}
	if limit := s.allowed.free(n); limit > 0 {
		s.spawn(func() { s.say(header{kind: typeCredit, value: limit}) })
	}
}

// retire takes a lane that is over out of the table, which lets the peer open
// another one.
func (s *session) retire(l *recvLane) {
	s.mu.Lock()
	delete(s.lanesIn, l.id)
	s.retired++
	s.mu.Unlock()
	s.tellLanes()
}

// retireSoon is retire for who holds the lane's mu.
func (s *session) retireSoon(l *recvLane) { s.spawn(func() { s.retire(l) }) }

// owesLanes reports whether the peer should hear that it may open more lanes:
// not of each, unless few are left. mu is held.
func (s *session) owesLanes() bool {
	most := uint64(s.p.cfg.MaxLanes)
	more, left := s.retired+most-s.lanesTold, s.lanesTold-s.lastIn
	return s.err == nil && more > 0 && (left <= most/2 || more >= most/64)
}

// tellLanes tells the peer how many lanes it may open, if it should hear of it.
func (s *session) tellLanes() {
	s.mu.Lock()
	if !s.owesLanes() {
		s.mu.Unlock()
		return
	}
	limit := s.retired + uint64(s.p.cfg.MaxLanes)
	s.lanesTold = limit
	s.mu.Unlock()
	s.say(header{kind: typeLanes, value: limit})
}

// say sends a frame without body. An error is the end of the session.
func (s *session) say(h header) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if err := s.send(h, vector{}); err != nil {
		s.fail(err)
	}
}

// send sends a frame on the first connection. It does not wait. writeMu is held.
func (s *session) send(h header, body vector) error {
	s.frame = append(append(h.appendTo(append(s.frame[:0], s.put...)), body.a...), body.b...)
	s.clearPut()
	_, err := s.conn.Write(s.frame)
	return err
}

// putOff is say for what may wait a moment: it goes out before the next frame, in
// one record with it, or with settle, which whoever calls putOff calls soon.
func (s *session) putOff(h header) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.put, s.collected.last = h.appendTo(s.put), -1
	s.owes.Store(true)
}

// settle sends what was put off, or collected.
func (s *session) settle() {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if len(s.put) > 0 {
		_ = s.writePut() // it ends the session, which others report
	}
}

// sendData sends v, which was reserved at offset at, on the first connection, or
// collects it, and names the lane if these are its first bytes. writeMu is held.
func (s *session) sendData(l *sendLane, at uint64, v vector, fin bool) error {
	id := s.name(l)
	if id == 0 {
		return s.Err()
	}
	if !fin && s.collected.hurries(time.Since(s.company.begun)) {
		return s.collect(id, at, v)
	}
	defer s.went()
	return s.sendPieces(id, at, v, fin)
}

// sendPieces is sendData for a lane that has a number. writeMu is held.
func (s *session) sendPieces(id, at uint64, v vector, fin bool) error {
	for {
		n := min(v.len(), maxSmall)
		h := header{kind: typeData, length: uint32(n), lane: id, value: at}
		if fin && n == v.len() {
			h.flags = flagFin
		}
		if err := s.send(h, v.cut(n)); err != nil {
			s.fail(err)
			return s.Err()
		}
		at += uint64(n)
		if v = v.skip(n); v.len() == 0 {
			return nil
		}
	}
}

// fail ends the session, from a goroutine of its own: the caller holds writeMu.
func (s *session) fail(err error) {
	end := closeError(err)
	s.spawn(func() { s.finish(end) })
}

// name returns the lane's number and gives it one if it has none. 0: the session
// has ended. writeMu is held, so that numbers come in the order of first frames.
func (s *session) name(l *sendLane) uint64 {
	if l.id != 0 {
		if s.ended() {
			return 0
		}
		return l.id
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0
	}
	if l.id == 0 {
		s.lastOut++
		l.id = s.lastOut
		delete(s.unnamed, l)
		s.lanesOut[l.id] = l
	}
	return l.id
}

// sendReset tells the peer that a lane was dropped, if it knows the lane.
func (s *session) sendReset(l *sendLane) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.mu.Lock()
	final := l.sent
	if l.id == 0 && final == 0 {
		s.openOut-- // the peer has never seen it
		s.freePlaces()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if id := s.name(l); id > 0 {
		_ = s.send(header{kind: typeReset, lane: id, value: final}, vector{})
	}
}

// forgetOut forgets a lane that was closed or dropped here.
func (s *session) forgetOut(l *sendLane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lanesOut, l.id)
	delete(s.unnamed, l)
	delete(s.waiting, l)
}
