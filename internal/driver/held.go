package driver

import (
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/transport"
)

// A held is a segment whose memory the lane may go on using when it was written:
// the operation has not ended, nor does the window go, before the last use has.
type held struct {
	c     *conn
	s     segment
	users atomic.Int32 // the writer, and the lane's
	seq   uint64       // of an answer, its number in opsLane.answers
}

var helds = sync.Pool{New: func() any { return new(held) }}

// holdMin is the shortest payload that is offered to a lane to hold, in bytes.
const holdMin = 256 << 10

// hold returns what holds the memory of a segment that is about to be written, nil
// if the lane has to copy it. The caller holds mu.
func (c *conn) hold(s segment) *held {
	if !holdable(s) {
		return nil
	}
	h := helds.Get().(*held)
	h.c, h.s = c, s
	h.users.Store(1)
	c.ops.users++
	if s.reply != nil {
		h.seq = c.ops.answers.Begin()
	}
	return h
}

// holdable reports whether a segment is long and its memory cannot be taken away.
func holdable(s segment) bool {
	var spans []span
	var length int64
	switch {
	case s.write != nil:
		spans, length = s.write.Local, s.write.Length
	case s.reply != nil:
		spans, length = s.reply.Spans, s.reply.Length
	}
	if length < holdMin {
		return false
	}
	for _, sp := range spans {
		if direct(sp) == nil {
			return false
		}
	}
	return true
}

// Retain implements transport.Hold.
func (h *held) Retain() { h.users.Add(1) }

// Release implements transport.Hold. It is not called with mu held.
func (h *held) Release() {
	if h.users.Add(-1) > 0 {
		return
	}
	c := h.c
	c.mu.Lock()
	h.end()
	c.mu.Unlock()
	c.kick(false) // the core may have had something to say
}

// end is the end of the last use. mu is held.
func (h *held) end() {
	c, s, seq := h.c, h.s, h.seq
	h.c, h.s = nil, segment{}
	helds.Put(h)
	c.finished(s, nil)
	c.ops.leave()
	if s.reply == nil {
		return
	}
	c.ops.answers.End(seq)
	if c.ops.freed != nil {
		close(c.ops.freed)
		c.ops.freed = nil
	}
}

// awaitAnswers waits until the lane holds no memory of answers to reads that have
// been written. A peer that says that its reads have ended has acknowledged their
// bytes, so that there is nothing to wait for; one that says so and has not gets no
// byte of what becomes of the memory.
func (c *conn) awaitAnswers() {
	o := &c.ops
	c.mu.Lock()
	defer c.mu.Unlock()
	for mark := o.answers.Mark(); !o.answers.Reached(mark); {
		if o.freed == nil {
			o.freed = make(chan struct{})
		}
		freed := o.freed
		c.mu.Unlock()
		<-freed // the end of the lane, and of the session, frees everything
		c.mu.Lock()
	}
}

var _ transport.Hold = (*held)(nil)
