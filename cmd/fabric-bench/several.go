package main

import (
	"context"
	"fmt"
	"slices"
)

// A variant is one of the ways in which a test is measured at every size, told
// apart by dir.
type variant struct {
	dir     string
	pairs   int64 // 0: as the run has it
	threads bool  // each pair has a thread of its own
	load    builder
}

// each measures a test's variants at every size.
func (b *bench) each(ctx context.Context, t *test, sizes []int64, variants []variant) (all []Result, err error) {
	for _, size := range sizes {
		for _, v := range variants {
			one, shape := *b, *t
			shape.special, shape.dir, shape.threads = nil, v.dir, v.threads
			if v.load != nil {
				shape.load = v.load
			}
			if v.pairs > 0 {
				one.pairs = v.pairs
			}
			r, raw, err := one.run(ctx, &shape, size)
			if err != nil {
				return all, err
			}
			all = append(append(all, r), raw...)
		}
	}
	return all, nil
}

// mtCounts are how many ping-pongs msg_mt_lat has at once.
var mtCounts = []int64{2, 4, 8}

// mtVariants returns those of msg_mt_lat: goroutines, up to most of them unless
// that is 0, and last as many threads.
func mtVariants(most int64) (all []variant) {
	counts := slices.DeleteFunc(slices.Clone(mtCounts), func(n int64) bool { return most > 0 && n > most })
	if len(counts) == 0 {
		counts = []int64{most}
	}
	for _, n := range counts {
		all = append(all, variant{dir: "echo", pairs: n})
	}
	return append(all, variant{dir: "echo, threads", pairs: counts[len(counts)-1], threads: true})
}

func manyThreads(ctx context.Context, b *bench, sizes []int64) ([]Result, error) {
	return b.each(ctx, testNamed("msg_mt_lat"), sizes, mtVariants(b.pairs))
}

// openingVariants are those of window_open_cached.
func openingVariants() []variant {
	return []variant{{dir: "first use", load: onOpening(true)}, {dir: "known", load: onOpening(false)}}
}

func manyOpenings(ctx context.Context, b *bench, sizes []int64) ([]Result, error) {
	if isAnchor(b.ours) {
		return nil, errNoWindows
	}
	return b.each(ctx, testNamed("window_open_cached"), sizes, openingVariants())
}

// shifts are the offsets of rma_align in the own and in the peer's window: equal
// ones, which a copy can make up for, and different ones, which it cannot.
var shifts = [][2]int64{{0, 0}, {1, 1}, {8, 8}, {shiftMost, shiftMost}, {0, 1}, {0, 8}, {0, shiftMost}}

func shiftVariants() (all []variant) {
	for _, s := range shifts {
		all = append(all, variant{dir: fmt.Sprintf("write +%d to +%d", s[0], s[1]), load: onScatter(shifted(s[0], s[1]))})
	}
	return all
}

func manyShifts(ctx context.Context, b *bench, sizes []int64) ([]Result, error) {
	if isAnchor(b.ours) {
		return nil, errNoWindows
	}
	return b.each(ctx, testNamed("rma_align"), sizes, shiftVariants())
}
