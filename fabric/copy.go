package fabric

import (
	"errors"
	"io"
	"sync"
)

// Buffers of ReadFrom and WriteTo: a copy begins with a small one, and goes on with a
// large one when that was full. A connection that is idle holds a small one.
const (
	copySmall = 64 << 10
	copyLarge = 256 << 10
)

var (
	smallCopies = sync.Pool{New: func() any { return new([copySmall]byte) }}
	largeCopies = sync.Pool{New: func() any { return new([copyLarge]byte) }}
)

// WriteTo writes received bytes to w until the connection's end, in pieces of up to
// 256 KiB. [io.Copy] uses it.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) { return copyPieces(w, c) }

// ReadFrom sends bytes read from r until its end, in pieces of up to 256 KiB. [io.Copy]
// uses it.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) { return copyPieces(c, r) }

// copyPieces copies from r to w until r's end.
func copyPieces(w io.Writer, r io.Reader) (n int64, err error) {
	small := smallCopies.Get().(*[copySmall]byte)
	n, full, err := copyWith(w, r, small[:], true)
	smallCopies.Put(small)
	if !full || err != nil {
		return n, err
	}
	large := largeCopies.Get().(*[copyLarge]byte)
	defer largeCopies.Put(large)
	more, _, err := copyWith(w, r, large[:], false)
	return n + more, err
}

// copyWith copies with buf until r's end, or, with grow, until a read has filled buf.
func copyWith(w io.Writer, r io.Reader, buf []byte, grow bool) (n int64, full bool, err error) {
	for {
		k, rerr := r.Read(buf)
		if k > 0 {
			m, werr := w.Write(buf[:k])
			n += int64(m)
			if werr == nil && m < k {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return n, false, werr
			}
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return n, false, nil
		case rerr != nil:
			return n, false, rerr
		case grow && k == len(buf):
			return n, true, nil
		}
	}
}
