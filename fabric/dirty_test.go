package fabric

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/status"
)

// bitmap is a rangeSet that knows every byte of a small space.
type bitmap [64]bool

func (b *bitmap) set(r Range) {
	for i := r.Offset; i < r.end(); i++ {
		b[i] = true
	}
}

// ranges returns the runs of bytes of r that are v.
func (b *bitmap) ranges(r Range, v bool) []Range {
	var out []Range
	for i := r.Offset; i < r.end(); i++ {
		switch n := len(out); {
		case b[i] != v:
		case n > 0 && out[n-1].end() == i:
			out[n-1].Length++
		default:
			out = append(out, Range{i, 1})
		}
	}
	return out
}

func drawRange(t *rapid.T, label string) Range {
	off := rapid.Int64Range(0, int64(len(bitmap{}))-1).Draw(t, label)
	return Range{off, rapid.Int64Range(1, min(12, int64(len(bitmap{}))-off)).Draw(t, label+" length")}
}

var wholeMap = Range{0, int64(len(bitmap{}))}

func TestRangeSetAgreesWithBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, kept rangeSet
		var model, keptModel bitmap
		limit := rapid.IntRange(1, 8).Draw(t, "limit")
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				r := drawRange(t, "add")
				next := model
				next.set(r)
				fits := len(next.ranges(wholeMap, true)) <= max(limit, len(model.ranges(wholeMap, true)))
				err := s.add(r, limit)
				if fits != (err == nil) || err != nil && !errors.Is(err, status.NoBufs) {
					t.Fatalf("add %v to %v with limit %d: %v", r, s.ranges, limit, err)
				}
				if fits {
					model = next
				}
			},
			"take": func(t *rapid.T) {
				kept, keptModel, s, model = s, model, rangeSet{}, bitmap{}
			},
			"give back": func(t *rapid.T) {
				s.merge(kept)
				for _, r := range keptModel.ranges(wholeMap, true) {
					model.set(r)
				}
			},
			"without": func(t *rapid.T) {
				r := drawRange(t, "without")
				if got, want := s.without(r), model.ranges(r, false); !slices.Equal(got, want) {
					t.Fatalf("%v without %v is %v, want %v", r, s.ranges, got, want)
				}
			},
			"": func(t *rapid.T) {
				if want := model.ranges(wholeMap, true); !slices.Equal(s.ranges, want) {
					t.Fatalf("the set is %v, want %v", s.ranges, want)
				}
			},
		})
	})
}

func TestRangeSetJoinsNeighboursOnly(t *testing.T) {
	var s rangeSet
	for _, r := range []Range{{10, 5}, {20, 5}, {30, 5}} {
		if err := s.add(r, 3); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		add  Range
		want []Range
		err  error
	}{
		{Range{16, 1}, []Range{{10, 5}, {20, 5}, {30, 5}}, status.NoBufs}, // between, touching nothing
		{Range{15, 1}, []Range{{10, 6}, {20, 5}, {30, 5}}, nil},
		{Range{9, 1}, []Range{{9, 7}, {20, 5}, {30, 5}}, nil},
		{Range{16, 4}, []Range{{9, 16}, {30, 5}}, nil},
		{Range{0, 100}, []Range{{0, 100}}, nil},
		{Range{1<<63 - 8, 7}, []Range{{0, 100}, {1<<63 - 8, 7}}, nil},
	} {
		if err := s.add(x.add, 3); !errors.Is(err, x.err) || !slices.Equal(s.ranges, x.want) {
			t.Errorf("add %v: %v, %v; want %v, %v", x.add, s.ranges, err, x.want, x.err)
		}
	}
}
