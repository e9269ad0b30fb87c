package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/transport"
)

// A gather is what a call of Write or WriteVec has not written yet.
type gather struct {
	parts []transport.Part
	done  int            // bytes of the first part that are written
	left  int            // bytes in all
	hold  transport.Hold // of the payloads; nil: they are copied
}

func newGather(parts []transport.Part, hold transport.Hold) gather {
	g := gather{parts: parts, hold: hold}
	for _, p := range parts {
		g.left += len(p.Head) + len(p.Payload)
	}
	return g
}

// front returns what is left of the first part that has something left.
func (g *gather) front() vector {
	for {
		v := vector{g.parts[0].Head, g.parts[0].Payload}.skip(g.done)
		if v.len() > 0 {
			return v
		}
		g.parts, g.done = g.parts[1:], 0
	}
}

// take moves past the next n bytes and calls f with them.
func (g *gather) take(n int, f func(v vector)) {
	for n > 0 {
		v := g.front()
		v = v.cut(min(n, v.len()))
		f(v)
		n -= v.len()
		g.advance(v.len())
	}
}

// advance moves past n bytes of the first part.
func (g *gather) advance(n int) {
	g.done += n
	g.left -= n
}

// piece returns how many bytes of g a bulk connection gets at once: as many as may
// be, but all pieces of about one size, so that no crumb is left.
func (g *gather) piece() int {
	pieces := (g.left + maxPiece - 1) / maxPiece
	return (g.left + pieces - 1) / pieces
}

// A sheaf is the bytes of one frame as a socket takes them: its header and the
// heads of its parts, which are copies, and payloads where they lie.
type sheaf struct {
	heads  []byte
	slices [][]byte
	hold   transport.Hold // of the payloads; nil: they are kept as copies
	users  atomic.Int32   // the writer, and the kept frame that refers to it
}

var sheaves = sync.Pool{New: func() any { return new(sheaf) }}

// newSheaf returns the frame of h and the next bytes of g, as many as h says.
func newSheaf(h header, g *gather) *sheaf {
	s := sheaves.Get().(*sheaf)
	s.users.Store(1)
	if s.hold = g.hold; h.length < heldMin {
		s.hold = nil
	}
	s.heads = h.appendTo(s.heads[:0])
	from := 0 // of heads, what is in no slice yet
	g.take(int(h.length), func(v vector) {
		s.heads = append(s.heads, v.a...)
		if len(v.b) > 0 {
			// Memory that heads leaves behind as it grows stays as it is.
			s.slices = append(s.slices, s.heads[from:len(s.heads):len(s.heads)], v.b)
			from = len(s.heads)
		}
	})
	if from < len(s.heads) {
		s.slices = append(s.slices, s.heads[from:])
	}
	return s
}

// payload returns the bytes from offset off of the frame's payload on, as many as
// lie together.
func (s *sheaf) payload(off int) []byte {
	off += headerLen
	for _, b := range s.slices {
		if off < len(b) {
			return b[off:]
		}
		off -= len(b)
	}
	return nil
}

// free ends one use of s. What it holds is not its own to release.
func (s *sheaf) free() {
	if s.users.Add(-1) > 0 {
		return
	}
	clear(s.slices)
	s.slices, s.hold = s.slices[:0], nil
	sheaves.Put(s)
}
