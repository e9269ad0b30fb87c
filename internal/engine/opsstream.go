package engine

import (
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

type segment = core.Segment[memory]

// inlineMax is the longest transfer that the caller itself writes; a longer
// one is left to a goroutine so that an asynchronous call stays one.
const inlineMax = 64 << 10

// An opsStream writes the queue of a connection's core to its operations stream. A
// goroutine that finds the stream idle writes; while one does, others only queue.
type opsStream struct {
	spawn func(func()) // runs something; the link waits for it
	begin func()       // runs the writer; the link waits for it

	// Guarded by the connection's mu.
	stream  transport.SendStream
	busy    bool          // a goroutine writes
	writing bool          // the writer does, and uses the memory of segments
	idle    chan struct{} // closed when writing becomes false; nil while no goroutine waits
	small   []byte        // memory for gather
}

// kick gets the queue written: at once if the stream takes it without blocking, by the caller if
// inline, else by a goroutine. The caller does not hold mu.
func (c *conn) kick(inline bool) {
	c.mu.Lock()
	left := c.start(inline)
	c.mu.Unlock()
	c.do(left)
}

// sendFrame queues a frame and gets it written, not by the caller. The caller holds no lock.
func (c *conn) sendFrame(frame []byte) {
	c.mu.Lock()
	c.core.Queue(frame)
	left := c.start(false)
	c.mu.Unlock()
	c.do(left)
}

// A deferred action is the part of a kick that its caller does after it has let go of mu.
type deferred int

const (
	nothing deferred = iota
	toWrite          // the caller has become the writer
	toFail           // the peer asks and does not read the answers
)

// do performs the action that start has returned.
func (c *conn) do(left deferred) {
	switch left {
	case toWrite:
		c.write()
	case toFail:
		c.fail("the peer's node does not read its answers")
	}
}

// start is kick for a caller that holds mu. The caller lets go and passes the result to do.
func (c *conn) start(inline bool) deferred {
	o := &c.ops
	if c.core.Fill() > 1 {
		return toFail
	}
	if o.busy || o.stream == nil || !c.core.Writes() {
		return nothing
	}
	if c.tryFront(); !c.core.Writes() {
		return nothing
	}
	o.busy, o.writing = true, true
	if inline {
		return toWrite
	}
	o.begin() // with mu held: a failing link waits for it
	return nothing
}

// tryFront hands the segments at the front to the stream as long as they are small and it does not
// block, as few packets as possible. The caller holds mu and is the writer.
func (c *conn) tryFront() {
	for c.mu.perform(); len(c.core.Queued()) > 0; c.mu.perform() {
		p, n := c.gather()
		if n == 0 {
			return
		}
		if ok, err := c.ops.stream.TryWrite(p); !ok || err != nil {
			return // write finds the error again
		}
		c.core.Wrote(n)
	}
}

// gather puts the small segments at the front into one piece of at most tryMax
// bytes and returns how many they are. The piece is valid while mu is held.
func (c *conn) gather() (p []byte, n int) {
	c.passAnswers()
	queued := c.core.Queued()
	if len(queued) == 1 && queued[0].Frames != nil {
		if len(queued[0].Frames) > tryMax {
			return nil, 0
		}
		return queued[0].Frames, 1
	}
	if c.ops.small == nil {
		c.ops.small = make([]byte, 0, tryMax)
	}
	p = c.ops.small
	for _, s := range queued {
		longer := appendSmall(p, s)
		if longer == nil {
			break
		}
		p = longer
		n++
	}
	return p, n
}

// appendSmall appends all of a segment to b, or returns nil if b has no room
// for it or its memory cannot be read.
func appendSmall(b []byte, s segment) []byte {
	room := int64(cap(b) - len(b))
	if s.Frames != nil {
		if int64(len(s.Frames)) > room {
			return nil
		}
		return append(b, s.Frames...)
	}
	spans, plain, n := s.Payload()
	if n > room-writeFrameLen {
		return nil
	}
	b = s.AppendHead(b, 0, n)
	if len(spans) == 0 {
		return append(b, plain...)
	}
	return appendSpans(b, spans, int(n))
}

// appendSpans appends the n bytes of spans to b, which has room for them, or
// returns nil if their memory cannot be read.
func appendSpans(b []byte, spans []span, n int) []byte {
	end := len(b) + n
	if loadSpans(spans, b[len(b):end]) != nil {
		return nil
	}
	return b[:end]
}

// writeFrameLen is the length of a Write frame without its payload, and no
// less than that of a ReadData frame.
const writeFrameLen = wire.HeaderLen + 20

// write is the writer: it writes until nothing is queued.
func (c *conn) write() {
	o := &c.ops
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.passAnswers(); len(c.core.Queued()) > 0; c.passAnswers() {
		s := c.core.Next()
		c.mu.Unlock()
		err := c.writeSegment(s)
		c.mu.Lock()
		c.written(s, err)
	}
	o.busy, o.writing = false, false
	if o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
	if c.core.StreamEnds() {
		o.stream.Close()
	}
}

// written accounts for a segment that was written, or not. The caller holds mu.
func (c *conn) written(s segment, err error) {
	code := replyCode(err)
	c.core.Written(s, code)
	if err == nil || s.Reply != nil && code != status.OK {
		return
	}
	c.core.Break()
	c.ops.spawn(func() { c.cutOff(err) }) // not here: fail takes mu
}

// A memoryError is a failure of the memory that an answer was to be read from.
type memoryError struct{ error }

func replyCode(err error) status.Code {
	if e, ok := err.(memoryError); ok {
		return status.Of(e.error)
	}
	return status.OK
}

func (c *conn) writeSegment(s segment) error {
	if s.Frames != nil {
		_, err := c.ops.stream.Write(s.Frames)
		return err
	}
	return c.writePayload(s)
}

// writePayload writes the memory of s, in frames.
func (c *conn) writePayload(s segment) error {
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	var part []span
	spans, buf, length := s.Payload()
	for off := int64(0); off < length; {
		n, plain := length-off, buf[min(off, int64(len(buf))):]
		var err error
		if len(plain) > stageLen/2 {
			n = min(n, wire.MaxPayload)
			err = c.writePlain(s.AppendHead(stage[:0], off, n), plain[:n])
		} else {
			n = min(n, stageLen-writeFrameLen)
			part = core.Cut(part[:0], spans, off, n)
			err = c.writeStaged(s.AppendHead(stage[:0], off, n), part, plain, n)
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// writePlain writes a frame with a contiguous payload.
func (c *conn) writePlain(head, payload []byte) error {
	_, err := c.ops.stream.Write(head)
	if err == nil {
		_, err = c.ops.stream.Write(payload)
	}
	c.moved.Add(1)
	return err
}

// writeStaged copies n bytes, of spans or the first of plain, behind head, which
// has capacity for them, and writes both at once.
func (c *conn) writeStaged(head []byte, spans []span, plain []byte, n int64) error {
	end := len(head) + int(n)
	if p := head[len(head):end]; len(spans) == 0 {
		copy(p, plain)
	} else if err := loadSpans(spans, p); err != nil {
		return memoryError{err}
	}
	c.moved.Add(1)
	_, err := c.ops.stream.Write(head[:end])
	return err
}
