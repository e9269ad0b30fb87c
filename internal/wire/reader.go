package wire

import (
	"fmt"
	"io"
)

// A Reader reads frames from a stream, through one buffer. Only the first frame longer than
// firstBuffer makes it allocate a larger one, because an idle connection has a Reader on each of
// its streams. It is not safe for concurrent use.
//
// Payload, and the raw bytes of a message stream, go from the stream straight into the caller's memory,
// except for bytes that had arrived in the buffer with the frame before them.
type Reader struct {
	src        io.Reader
	start, end int // of the buffered bytes that were not yet returned
	buf        []byte

	// Invariant: 0 <= start <= end <= len(buf).
}

// The length of a Reader's buffer, in bytes: initially, and once a frame needs more.
const (
	firstBuffer = 512
	wholeBuffer = HeaderLen + MaxBody
)

// NewReader returns a Reader of the frames in r.
func NewReader(r io.Reader) *Reader { return &Reader{src: r, buf: make([]byte, firstBuffer)} }

// Next reads the next frame's header and body. The body is valid until the
// next call of any method. The payload of a Write or ReadData is still to be
// read, by Payload or Discard, before the next Next.
//
// At the end of the stream the error is io.EOF between two frames and io.ErrUnexpectedEOF within one.
// After ErrMalformed and ErrUnknownType the stream is unusable. After any other error of the stream,
// such as a deadline, Next may be called again: nothing is lost.
func (r *Reader) Next() (Header, []byte, error) {
	if err := r.fill(HeaderLen); err != nil {
		return Header{}, nil, err
	}
	h, err := ParseHeader(r.buf[r.start:r.end])
	if err != nil {
		return Header{}, nil, err
	}
	n := HeaderLen + int(h.Len)
	if err := r.fill(n); err != nil {
		return Header{}, nil, err
	}
	body := r.buf[r.start+HeaderLen : r.start+n : r.start+n]
	r.start += n
	return h, body, nil
}

// Payload fills p with the bytes that follow the frame. If the stream ends earlier, the error is
// io.ErrUnexpectedEOF. A Payload that has failed cannot be resumed; a caller that must resume uses
// Read.
func (r *Reader) Payload(p []byte) error {
	n := r.buffered(p)
	if n == len(p) {
		return nil
	}
	_, err := io.ReadFull(r.src, p[n:])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Discard skips n payload bytes.
func (r *Reader) Discard(n int) error {
	for n > 0 {
		if r.start == r.end {
			if err := r.more(); err == io.EOF {
				return io.ErrUnexpectedEOF
			} else if err != nil {
				return err
			}
		}
		k := min(n, r.end-r.start)
		r.start += k
		n -= k
	}
	return nil
}

// Read reads raw bytes that follow the frames, as an io.Reader: the message bytes after a Stream.
func (r *Reader) Read(p []byte) (int, error) {
	if n := r.buffered(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	return r.src.Read(p)
}

// Buffered returns how many bytes Read returns without touching the stream.
func (r *Reader) Buffered() int { return r.end - r.start }

// buffered moves buffered bytes to p and returns how many.
func (r *Reader) buffered(p []byte) int {
	n := copy(p, r.buf[r.start:r.end])
	r.start += n
	return n
}

// fill reads until n bytes are buffered. n is at most wholeBuffer.
func (r *Reader) fill(n int) error {
	if n > len(r.buf) {
		buf := make([]byte, wholeBuffer)
		r.start, r.end = 0, copy(buf, r.buf[r.start:r.end])
		r.buf = buf
	}
	for r.end-r.start < n {
		err := r.more()
		if err == io.EOF && r.end > r.start {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// more buffers at least one more byte. It is called only while the buffer has
// room for one.
func (r *Reader) more() error {
	if r.start > 0 {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	// A stream returns at least one byte or an error; one that keeps returning
	// neither must not turn this into an endless loop.
	for range 100 {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		if n > 0 {
			return nil // an error returned with bytes recurs
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("read frame: %w", io.ErrNoProgress)
}
