package core

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// A Segment is a piece of the output that waits for the operations stream: some
// encoded frames, the frames and payload of a write, or the answer to a read.
type Segment[M any] struct {
	Frames []byte
	Write  *Op[M]
	Reply  *Reply[M]

	behind bool // Frames come behind the frame passed to Precede; see NextBehind
}

// Payload returns the memory that the n bytes of a write or an answer are read from:
// spans or, if there are none, buf.
func (s Segment[M]) Payload() (spans []rma.Span[M], buf []byte, n int64) {
	switch {
	case s.Write != nil:
		return s.Write.Local, s.Write.Buf, s.Write.Length
	case s.Reply != nil:
		return s.Reply.Spans, nil, s.Reply.Length
	}
	return nil, nil, 0
}

// AppendHead appends the frame for the n bytes of the payload from off on.
func (s Segment[M]) AppendHead(b []byte, off, n int64) []byte {
	if op := s.Write; op != nil {
		last := off+n == op.Length
		return wire.Write{Op: op.Seq, Offset: op.Offset + uint64(off), Length: uint32(n), Last: last,
			Ordered: op.Ordered && last}.AppendTo(b)
	}
	return wire.ReadData{Op: s.Reply.Op, Length: uint32(n), Last: off+n == s.Reply.Length}.AppendTo(b)
}

// queueMax bounds the frames that wait for a stream, in bytes. An honest peer, whose
// open operations are bounded, never makes an end queue so many answers.
const queueMax = 3 << 18

// A queue holds the segments for the operations stream, in order.
type queue[M any] struct {
	segments fifo[Segment[M]]
	bytes    int          // queued in frames
	behind   int          // segments that are
	closed   bool         // nothing more is queued; the stream ends behind the queued segments
	broken   bool         // nothing more is written
	spare    []byte       // memory for the next segment's frames
	wrote    []Segment[M] // memory for Wrote
	done     bool         // the last frame queued is a Done, at the end of the last segment
}

// put queues encoded frames.
func (q *queue[M]) put(frame []byte, behind bool) {
	if q.broken || q.closed {
		return
	}
	done := wire.Type(frame[0]) == wire.TypeDone
	if n := q.segments.len(); n > 0 && !behind && q.segments.at(n-1).Frames != nil {
		last := &q.segments.all()[n-1]
		if done && q.done { // a Done stands for all before it
			copy(last.Frames[len(last.Frames)-len(frame):], frame)
			return
		}
		q.bytes += len(frame)
		last.Frames = append(last.Frames, frame...)
		q.done = done
		return
	}
	if behind {
		q.behind++
	}
	q.bytes += len(frame)
	q.segments.push(Segment[M]{Frames: append(q.spare[:0], frame...), behind: behind})
	q.spare, q.done = nil, done
}

// Queue queues a frame. It copies the bytes.
func (c *Conn[M]) Queue(frame []byte) { c.out.put(frame, false) }

// push queues a payload. One that will not be written is not used any more.
func (c *Conn[M]) push(s Segment[M]) {
	if c.out.broken || c.out.closed {
		c.Written(s, status.OK)
		return
	}
	if s.Reply != nil {
		c.in.queued++
	}
	c.out.done = false
	c.out.segments.push(s)
}

// Queued returns the segments to be written. It is valid until the Conn is used again.
func (c *Conn[M]) Queued() []Segment[M] { return c.out.segments.all() }

// Fill returns how full the queue of frames is. Above 1 the peer asks and does not read the
// answers.
func (c *Conn[M]) Fill() float64 { return float64(c.out.bytes) / queueMax }

// NextBehind returns the first segment queued, if any, whose frames are an answer that
// the peer takes for the end of operations which the application may have brought to it
// past this Conn. The engine calls Precede with the frame that reports those to the peer.
func (c *Conn[M]) NextBehind() *Segment[M] {
	if c.out.behind == 0 {
		return nil
	}
	for i, s := range c.Queued() {
		if s.behind {
			return &c.Queued()[i]
		}
	}
	return nil
}

// Precede puts a frame before those of s.
func (c *Conn[M]) Precede(s *Segment[M], frame []byte) {
	s.Frames, s.behind = append(frame, s.Frames...), false
	c.out.bytes += len(frame)
	c.out.behind--
}

// Next takes the first segment off the queue, which is not empty: the engine writes it,
// and the peer may have an answer, and begin another operation, before Written.
func (c *Conn[M]) Next() Segment[M] {
	s := c.out.segments.pop()
	c.out.bytes -= len(s.Frames)
	if s.behind {
		c.out.behind--
	}
	if s.Reply != nil {
		c.in.queued--
	}
	return s
}

// Written reports that the engine has no more use for a segment and its memory. If it
// could not read the memory of an answer, code is the reason, and the answer ends with a Fail.
func (c *Conn[M]) Written(s Segment[M], code status.Code) {
	switch {
	case s.Write != nil:
		c.unuse(s.Write)
	case s.Reply != nil:
		c.replied(s.Reply, code)
	default:
		c.out.spare = s.Frames
	}
}

// Wrote reports that the first n segments have been written.
func (c *Conn[M]) Wrote(n int) {
	if n == 1 {
		c.Written(c.Next(), status.OK)
		return
	}
	// Out of the queue first: each of them may queue more, behind the last.
	for range n {
		c.out.wrote = append(c.out.wrote, c.Next())
	}
	for _, s := range c.out.wrote {
		c.Written(s, status.OK)
	}
	c.out.wrote = emptied(c.out.wrote)
}

// End lets nothing more be queued.
func (c *Conn[M]) End() { c.out.closed = true }

// Break ends the writing at once, and drops the queue.
func (c *Conn[M]) Break() {
	c.out.broken = true
	for len(c.Queued()) > 0 {
		c.Written(c.Next(), status.OK)
	}
	c.out.spare = nil
}

// Broken reports whether nothing more is written.
func (c *Conn[M]) Broken() bool { return c.out.broken }

// Writes reports whether something is to be written, or the stream to be ended.
func (c *Conn[M]) Writes() bool {
	return !c.out.broken && (c.out.closed || c.out.segments.len() > 0)
}

// StreamEnds reports, once, that the stream is to be ended: everything before End is written.
func (c *Conn[M]) StreamEnds() bool {
	ends := c.out.closed && c.Writes() && c.out.segments.len() == 0
	c.out.broken = c.out.broken || ends
	return ends
}
