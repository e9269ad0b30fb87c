package fabric

import (
	"slices"
	"sort"

	"github.com/fabricd/fabricd/internal/status"
)

// A Range is a part of a mirror: [Offset, Offset+Length), in bytes from its
// beginning.
type Range struct{ Offset, Length int64 }

func (r Range) end() int64 { return r.Offset + r.Length }

// A rangeSet is a set of bytes, kept as ranges. The zero rangeSet is empty.
type rangeSet struct {
	ranges []Range

	// Invariant: not empty, ascending, and with a gap between any two.
}

// add adds r, which is not empty. It changes nothing and returns
// status.NoBufs if the set would have more than limit ranges. Ranges are never
// joined over a gap: the bytes in it were not added.
func (s *rangeSet) add(r Range, limit int) error {
	lo, hi := s.touching(r)
	if lo == hi && len(s.ranges) >= limit {
		return status.NoBufs
	}
	if lo < hi {
		end := max(r.end(), s.ranges[hi-1].end())
		r.Offset = min(r.Offset, s.ranges[lo].Offset)
		r.Length = end - r.Offset
	}
	s.ranges = slices.Replace(s.ranges, lo, hi, r)
	return nil
}

// touching returns which ranges have a byte in common with r or next to it.
func (s *rangeSet) touching(r Range) (lo, hi int) {
	lo = sort.Search(len(s.ranges), func(i int) bool { return s.ranges[i].end() >= r.Offset })
	hi = lo + sort.Search(len(s.ranges)-lo, func(i int) bool { return s.ranges[lo+i].Offset > r.end() })
	return lo, hi
}

// merge adds all of other.
func (s *rangeSet) merge(other rangeSet) {
	for _, r := range other.ranges {
		_ = s.add(r, len(s.ranges)+1) // one more is always allowed
	}
}

// without returns the parts of r that are not in the set, ascending.
func (s *rangeSet) without(r Range) []Range {
	var out []Range
	at := r.Offset
	lo, hi := s.touching(r)
	for _, x := range s.ranges[lo:hi] {
		if at < x.Offset {
			out = append(out, Range{at, x.Offset - at})
		}
		at = max(at, x.end())
	}
	if at < r.end() {
		out = append(out, Range{at, r.end() - at})
	}
	return out
}
