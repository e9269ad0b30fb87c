package rma

import (
	"math"

	"github.com/fabricd/fabricd/internal/status"
)

// Spans appends to dst the parts of registered windows that make up
// [off, off+n), in order, and returns the longer slice. It does not allocate
// if dst has room. The windows are not retained.
//
// The error, with dst unchanged, is status.Invalid if n is not positive, status.NoAddress if the
// range is negative, wraps, or is not wholly in registered windows, and status.Access if a window
// does not allow all of need. Of several errors, the one at the lowest offset is returned.
func (s *Space[M]) Spans(dst []Span[M], off, n int64, need Prot) ([]Span[M], error) {
	return s.spans(dst, off, n, need, registered)
}

// PeerSpans is Spans for an operation that the peer began: it also finds windows that were
// withdrawn after the peer began it, until they are retired.
func (s *Space[M]) PeerSpans(dst []Span[M], off, n int64, need Prot) ([]Span[M], error) {
	return s.spans(dst, off, n, need, withdrawn)
}

// Within returns the span of [off, off+n) in one registered window: for a
// signal, an atomic or a mapping. Its errors are those of Spans; a range over
// several windows is status.NoAddress.
func (s *Space[M]) Within(off, n int64, need Prot) (Span[M], error) {
	return s.within(off, n, need, registered)
}

// PeerWithin is Within with the windows of PeerSpans.
func (s *Space[M]) PeerWithin(off, n int64, need Prot) (Span[M], error) {
	return s.within(off, n, need, withdrawn)
}

// checkRange checks the arguments common to all lookups.
func checkRange(off, n int64) error {
	if n <= 0 {
		return status.Invalid
	}
	if off < 0 || off > math.MaxInt64-n {
		return status.NoAddress
	}
	return nil
}

func (s *Space[M]) spans(dst []Span[M], off, n int64, need Prot, upTo windowState) ([]Span[M], error) {
	if err := checkRange(off, n); err != nil {
		return dst, err
	}
	out := dst
	for i := s.firstEndingAfter(off); n > 0; i++ {
		if i == len(s.windows) {
			return dst, status.NoAddress
		}
		sp, err := s.windows[i].part(off, n, need, upTo)
		if err != nil {
			return dst, err
		}
		out = append(out, sp)
		off += sp.Length
		n -= sp.Length
	}
	return out, nil
}

func (s *Space[M]) within(off, n int64, need Prot, upTo windowState) (Span[M], error) {
	if err := checkRange(off, n); err != nil {
		return Span[M]{}, err
	}
	i := s.firstEndingAfter(off)
	if i == len(s.windows) {
		return Span[M]{}, status.NoAddress
	}
	sp, err := s.windows[i].part(off, n, need, upTo)
	if err == nil && sp.Length < n {
		return Span[M]{}, status.NoAddress
	}
	return sp, err
}

// part returns the part of [off, off+n) in the entry's window, which must contain its first byte.
func (e *entry[M]) part(off, n int64, need Prot, upTo windowState) (Span[M], error) {
	if off < e.off || e.w.state > upTo {
		return Span[M]{}, status.NoAddress
	}
	if e.w.Prot&need != need {
		return Span[M]{}, status.Access
	}
	return Span[M]{Window: e.w, Offset: off - e.off, Length: min(n, e.end-off)}, nil
}
