package tcp

import "time"

// A write of a few frames whose writer has waited for something before, and has
// nothing else under way, as in a round trip, goes over the first connection, in one
// call: on a bulk connection there is another goroutine to be woken before the one
// that waits for the bytes. Who writes one after the other gets bulk connections,
// which carry more and hold up nobody.

const (
	// loneMax is the longest such write, in bytes: 64 KiB and what describes them.
	loneMax = 64<<10 + 1<<10
	// calm is how many writes in a row have to have come after a wait.
	calm = 2
)

// A pace says whether the writer of a lane waits between large writes. It is the
// writer's.
type pace struct {
	last    time.Time // the end of the last large write
	waits   int       // writes in a row before which there was more than hurry, up to calm
	follows bool      // the next write follows others that are under way
}

// begins notes the begin of a large write, and reports whether it is a lone one.
func (p *pace) begins() bool {
	if p.follows || time.Since(p.last) <= hurry {
		p.waits = 0
		return false
	}
	p.waits = min(p.waits+1, calm)
	return p.waits == calm
}

func (p *pace) ends() { p.last = time.Now() }

// Follows implements transport.Follower.
func (l *sendLane) Follows() { l.pace.follows = true }

// writeLone hands over all of g on the first connection, in as many frames as it
// takes. It reports false if there is no credit for all of it, or much to write
// before.
func (l *sendLane) writeLone(g *gather) (bool, error) {
	l.s.writeMu.Lock()
	defer l.s.writeMu.Unlock()
	n, at, err := l.reserveNow(g.left)
	if n == 0 || err != nil {
		return false, err
	}
	return true, l.s.sendLone(l, at, g)
}

// reserveNow takes credit for n bytes of the first connection, or none: it does not
// ask to be woken. writeMu is held, as in reserveFirst.
func (l *sendLane) reserveNow(n int) (took int, at uint64, err error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.failure(); err != nil {
		return 0, 0, err
	}
	if s.out.backlog.Load() > 0 || min(l.limit-l.sent, s.sendLimit-s.sendTotal) < uint64(n) {
		return 0, 0, nil
	}
	at = l.sent
	l.sent += uint64(n)
	s.sendTotal += uint64(n)
	return n, at, nil
}

// sendLone sends all of g, which was reserved at offset at. writeMu is held.
func (s *session) sendLone(l *sendLane, at uint64, g *gather) error {
	id := s.name(l)
	if id == 0 {
		return s.Err()
	}
	s.frame = append(s.frame[:0], s.put...)
	s.clearPut()
	for g.left > 0 {
		v := g.front()
		v = v.cut(min(v.len(), maxSmall))
		h := header{kind: typeData, length: uint32(v.len()), lane: id, value: at}
		s.frame = append(append(h.appendTo(s.frame), v.a...), v.b...)
		at += uint64(v.len())
		g.advance(v.len())
	}
	defer s.went()
	if _, err := s.conn.Write(s.frame); err != nil {
		s.fail(err)
		return s.Err()
	}
	return nil
}
