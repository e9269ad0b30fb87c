package tcp

import "time"

// A writer that comes again at once has its frames collected, and written together:
// each write costs a record, a system call and a wake-up of the peer. Whoever has
// waited for something in between was away for longer than hurry, so that a message
// or a step of a round trip is written at once. What is collected goes out when it
// fills a record, before any other frame, when somebody begins to wait or to read,
// and else as soon as the session's flusher gets to run.
const (
	hurry       = 5 * time.Microsecond // less than a round trip between two threads
	eager       = 4                    // frames of a hurry that are written one by one
	collectFull = 15 << 10             // bytes that are not kept any longer: about a record
)

// A collection is the data at the end of a session's put. Guarded by writeMu.
type collection struct {
	sent   time.Duration // when the last data was sent or collected, since the company has begun
	streak int           // frames in a row that came within hurry, up to eager

	last int    // where the header of the last frame in put is, if it is data; -1: it is none
	lane uint64 // of that frame
	end  uint64 // the offset behind it

	flusher bool // it was started
}

// hurries reports whether the next data, at a time since the company has begun, is to be
// collected.
func (c *collection) hurries(now time.Duration) bool {
	if now-c.sent > hurry {
		c.streak = 0
		return false
	}
	c.streak = min(c.streak+1, eager)
	c.sent = now
	return c.streak == eager
}

// went notes that data was written at once. writeMu is held.
func (s *session) went() {
	s.collected.sent = time.Since(s.company.begun)
	s.spoke.Store(int64(s.collected.sent))
	s.company.said(s.collected.sent)
}

// collect keeps the bytes v, at offset at of a lane, for the next write. writeMu is
// held.
func (s *session) collect(id, at uint64, v vector) error {
	c, n := &s.collected, v.len()
	if c.last >= 0 && c.lane == id && c.end == at && s.lengthen(n) {
		s.put = append(append(s.put, v.a...), v.b...)
	} else {
		c.last, c.lane = len(s.put), id
		h := header{kind: typeData, length: uint32(n), lane: id, value: at}
		s.put = append(append(h.appendTo(s.put), v.a...), v.b...)
	}
	c.end = at + uint64(n)
	if len(s.put) >= collectFull {
		return s.writePut()
	}
	s.owes.Store(true)
	if !s.collects.Load() {
		s.collects.Store(true)
		s.wakeFlusher()
	}
	return nil
}

// lengthen makes the last collected frame longer by n bytes, if it may be.
func (s *session) lengthen(n int) bool {
	length := uint32(len(s.put)-s.collected.last-headerLen) + uint32(n)
	if length > maxSmall {
		return false
	}
	setLength(s.put[s.collected.last:], length)
	return true
}

// writePut writes what was put off and collected. writeMu is held.
func (s *session) writePut() error {
	_, err := s.conn.Write(s.put)
	s.clearPut()
	if err != nil {
		s.fail(err)
		return s.Err()
	}
	return nil
}

// clearPut empties put, which was written. writeMu is held.
func (s *session) clearPut() {
	s.put, s.collected.last = s.put[:0], -1
	s.owes.Store(false)
	s.collects.Store(false)
}

// flush writes what was collected. Who is about to wait calls it.
func (s *session) flush() {
	if s.collects.Load() {
		s.settle()
	}
}

// wakeFlusher makes the flusher flush. writeMu is held.
func (s *session) wakeFlusher() {
	if !s.collected.flusher {
		s.collected.flusher = s.spawn(s.flushAll)
	}
	notify(s.flushes)
}

// flushAll is the flusher. It ends with the session.
func (s *session) flushAll() {
	for {
		select {
		case <-s.flushes:
			s.flush()
		case <-s.done:
			return
		}
	}
}
