package engine

import (
	"sync"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// A segment is a piece of what waits to be written to an operations lane: some
// encoded frames, the frames and payload of a write, or the answer to a read.
type segment struct {
	frames []byte
	write  *core.Op[memory]
	reply  *core.Reply[memory]
}

// queueMax bounds the frames that wait for a lane, in bytes. An honest peer,
// whose open operations are bounded, never makes us queue so many answers.
const queueMax = 1 << 20

// inlineMax is the longest transfer that the caller itself writes; a longer
// one is left to a goroutine so that an asynchronous call stays one.
const inlineMax = 64 << 10

// An opsLane writes the operations lane of a connection. Frames go out in the
// order in which they were queued. A goroutine that finds the lane idle writes; while
// one does, others only queue.
type opsLane struct {
	spawn func(func()) // runs something; the link waits for it
	begin func()       // runs the writer; the link waits for it

	mu      *sync.Mutex // the connection's; guards the fields below
	lane    transport.SendLane
	queue   []segment
	head    int           // of queue
	bytes   int           // queued in frames
	busy    bool          // a goroutine writes
	writing bool          // the writer does, and uses the memory of segments
	closed  bool          // nothing more is queued; the lane ends behind what is
	broken  bool          // nothing more is written
	idle    chan struct{} // closed when writing becomes false; nil while nobody waits
	spare   []byte        // memory for the next segment's frames
	done    bool          // the last frame queued is a Done, at the end of the last segment
	small   []byte        // memory for gather
	handed  []segment     // memory for tryFront
}

// put queues encoded frames. The caller holds mu.
func (o *opsLane) put(frame []byte) {
	if o.broken || o.closed {
		return
	}
	done := wire.Type(frame[0]) == wire.TypeDone
	if n := len(o.queue); n > o.head && o.queue[n-1].frames != nil {
		last := &o.queue[n-1]
		if done && o.done { // a Done stands for all before it
			copy(last.frames[len(last.frames)-len(frame):], frame)
			return
		}
		o.bytes += len(frame)
		last.frames = append(last.frames, frame...)
		o.done = done
		return
	}
	o.bytes += len(frame)
	o.push(segment{frames: append(o.spare[:0], frame...)})
	o.spare, o.done = nil, done
}

// push queues a segment at the end.
func (o *opsLane) push(s segment) {
	o.done = false
	if o.head > 0 && len(o.queue) == cap(o.queue) {
		n := copy(o.queue, o.queue[o.head:])
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
	o.queue = append(o.queue, s)
}

func (o *opsLane) pop() segment {
	s := o.queue[o.head]
	o.queue[o.head] = segment{}
	if o.head++; o.head == len(o.queue) {
		o.queue, o.head = o.queue[:0], 0
	}
	o.bytes -= len(s.frames)
	return s
}

func (o *opsLane) empty() bool { return o.head == len(o.queue) }

// kick gets what is queued written: at once if the lane takes it without
// blocking, by the caller if inline, else by a goroutine. The caller does not
// hold mu.
func (c *conn) kick(inline bool) {
	c.mu.Lock()
	left := c.start(inline)
	c.mu.Unlock()
	c.do(left)
}

// say queues a frame and gets it written, not by the caller. The caller holds no lock.
func (c *conn) say(frame []byte) {
	c.mu.Lock()
	c.ops.put(frame)
	left := c.start(false)
	c.mu.Unlock()
	c.do(left)
}

// A deferred action is what is left of a kick for a caller that has let go of mu.
type deferred int

const (
	nothing deferred = iota
	toWrite          // the caller has become the writer
	toFail           // the peer asks and does not read the answers
)

// do does what start has left.
func (c *conn) do(left deferred) {
	switch left {
	case toWrite:
		c.write()
	case toFail:
		c.fail("the peer's node does not read its answers")
	}
}

// start is kick for a caller that holds mu, and does what it returns when it has let go.
func (c *conn) start(inline bool) deferred {
	o := &c.ops
	if o.bytes > queueMax {
		return toFail
	}
	if o.busy || o.broken || o.lane == nil || o.empty() && !o.closed {
		return nothing
	}
	if c.tryFront(); o.empty() && !o.closed {
		return nothing
	}
	o.busy, o.writing = true, true
	if inline {
		return toWrite
	}
	o.begin() // with mu held: a failing link waits for it
	return nothing
}

// tryFront hands the segments at the front to the lane as long as they are
// small and it does not block, as few packets as possible. The caller holds mu
// and is the writer.
func (c *conn) tryFront() {
	o := &c.ops
	for !o.empty() {
		p, n := c.gather()
		if n == 0 {
			return
		}
		if ok, err := o.lane.TryWrite(p); !ok || err != nil {
			return // write finds the error again
		}
		// Out of the queue first: the core may queue more at each of them.
		o.handed = o.handed[:0]
		for range n {
			o.handed = append(o.handed, o.pop())
		}
		for i, s := range o.handed {
			c.finished(s, nil)
			o.handed[i] = segment{}
		}
	}
}

// gather puts the small segments at the front into one piece of at most tryMax
// bytes and returns how many they are. The piece is valid while mu is held.
func (c *conn) gather() (p []byte, n int) {
	o := &c.ops
	first := o.queue[o.head]
	if len(o.queue) == o.head+1 && first.frames != nil {
		if len(first.frames) > tryMax {
			return nil, 0
		}
		return first.frames, 1
	}
	if o.small == nil {
		o.small = make([]byte, 0, tryMax)
	}
	p = o.small
	for _, s := range o.queue[o.head:] {
		longer := c.appendSmall(p, s)
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
func (c *conn) appendSmall(b []byte, s segment) []byte {
	room := int64(cap(b) - len(b))
	switch {
	case s.write != nil:
		op := s.write
		if op.Length > room-writeFrameLen {
			return nil
		}
		b = wire.Write{Op: op.Seq, Offset: op.Offset, Length: uint32(op.Length), Last: true, Ordered: op.Ordered}.AppendTo(b)
		if len(op.Local) == 0 {
			return append(b, op.Buf...)
		}
		return appendSpans(b, op.Local, int(op.Length))
	case s.reply != nil:
		if s.reply.Length > room-writeFrameLen {
			return nil
		}
		b = wire.ReadData{Op: s.reply.Op, Length: uint32(s.reply.Length), Last: true}.AppendTo(b)
		return appendSpans(b, s.reply.Spans, int(s.reply.Length))
	case int64(len(s.frames)) > room:
		return nil
	}
	return append(b, s.frames...)
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
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.empty() && !o.broken {
		s := o.pop()
		if s.reply != nil {
			c.core.Replying(s.reply)
		}
		o.mu.Unlock()
		err := c.writeSegment(s)
		o.mu.Lock()
		c.written(s, err)
	}
	o.busy, o.writing = false, false
	if o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
	if o.broken {
		c.dropQueue()
	} else if o.closed {
		o.closed, o.broken = false, true // once
		o.lane.Close()
	}
}

// written accounts for a segment that was written, or not. The caller holds mu.
func (c *conn) written(s segment, err error) {
	c.finished(s, err)
	if err == nil || s.reply != nil && replyCode(err) != status.OK {
		return
	}
	c.ops.broken = true
	c.ops.spawn(func() { c.cutOff(err) }) // not here: fail takes mu
}

// finished says that the memory of a segment is not used any more. The caller
// holds mu.
func (c *conn) finished(s segment, err error) {
	switch {
	case s.write != nil:
		c.core.Sent(s.write)
	case s.reply != nil:
		c.core.Replied(s.reply, replyCode(err))
	default:
		c.ops.spare = s.frames
	}
}

// dropQueue forgets what will not be written. The caller holds mu.
func (c *conn) dropQueue() {
	for !c.ops.empty() {
		c.finished(c.ops.pop(), nil)
	}
	c.ops.spare = nil
}

// breakOff ends the lane at once. The caller holds mu.
func (o *opsLane) breakOff() {
	o.broken = true
	if o.lane != nil {
		o.lane.Cancel()
	}
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
	switch {
	case s.write != nil:
		op := s.write
		return c.writePayload(op.Local, op.Buf, op.Length, func(b []byte, off int64, n int, last bool) []byte {
			return wire.Write{Op: op.Seq, Offset: op.Offset + uint64(off), Length: uint32(n), Last: last,
				Ordered: op.Ordered && last}.AppendTo(b)
		})
	case s.reply != nil:
		r := s.reply
		return c.writePayload(r.Spans, nil, r.Length, func(b []byte, _ int64, n int, last bool) []byte {
			return wire.ReadData{Op: r.Op, Length: uint32(n), Last: last}.AppendTo(b)
		})
	}
	_, err := c.ops.lane.Write(s.frames)
	return err
}

// writePayload writes length bytes of spans, or of buf if there are none, in
// frames that head makes.
func (c *conn) writePayload(spans []span, buf []byte, length int64, head func(b []byte, off int64, n int, last bool) []byte) error {
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	var part []span
	for off := int64(0); off < length; {
		n, plain := length-off, buf
		if buf != nil {
			plain = buf[off:]
		} else {
			part = core.Cut(part[:0], spans, off, n)
			plain = direct(part[0])
		}
		var err error
		if plain != nil && len(plain) > stageLen/2 {
			n = min(n, int64(len(plain)), wire.MaxPayload)
			err = c.writePlain(head(stage[:0], off, int(n), off+n == length), plain[:n])
		} else {
			n = min(n, stageLen-writeFrameLen)
			part = core.Cut(part[:0], spans, off, n)
			err = c.writeStaged(head(stage[:0], off, int(n), off+n == length), part, plain, n)
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// writePlain writes a frame whose payload lies together.
func (c *conn) writePlain(head, payload []byte) error {
	_, err := c.ops.lane.Write(head)
	if err == nil {
		_, err = c.ops.lane.Write(payload)
	}
	c.moved.Add(1)
	return err
}

// writeStaged copies n bytes, of spans or the first of plain, behind head, whose memory
// has room for them, and writes both at once.
func (c *conn) writeStaged(head []byte, spans []span, plain []byte, n int64) error {
	end := len(head) + int(n)
	if p := head[len(head):end]; len(spans) == 0 {
		copy(p, plain)
	} else if err := loadSpans(spans, p); err != nil {
		return memoryError{err}
	}
	c.moved.Add(1)
	_, err := c.ops.lane.Write(head[:end])
	return err
}
