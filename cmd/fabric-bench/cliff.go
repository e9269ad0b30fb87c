package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// cliffFactor is how much more than the ratio of two neighbouring sizes the time
// of an operation may grow.
const cliffFactor = 2

// A Cliff is two neighbouring sizes of a sweep between which the time of an
// operation grows too much.
type Cliff struct {
	Test     string `json:"test"`
	Provider string `json:"provider"`
	From     int64  `json:"from_bytes"`
	To       int64  `json:"to_bytes"`
	Before   figure `json:"before_us"` // time of an operation of From bytes
	After    figure `json:"after_us"`
	Growth   figure `json:"growth"`       // After/Before over To/From, above cliffFactor
	Again    figure `json:"growth_again"` // the same, when both sizes were measured again; null: they were not

	key sweepKey
}

func (c Cliff) String() string {
	s := fmt.Sprintf("%s over %s: from %s to %s time grows %.1f times more than the size, %s to %s µs",
		c.Test, c.Provider, sizeName(c.From), sizeName(c.To), float64(c.Growth), short(c.Before), short(c.After))
	switch {
	case c.stays():
		return s + fmt.Sprintf("; measured again %.1f times", float64(c.Again))
	case c.Again.measured():
		return s + fmt.Sprintf("; measured again %.1f times, which is none", float64(c.Again))
	}
	return s
}

// stays reports whether the cliff was there when it was measured again.
func (c Cliff) stays() bool { return c.Again.measured() && c.Again > cliffFactor }

// operationTime returns how long one operation of a result takes, in
// microseconds.
func operationTime(r Result) figure {
	switch r.Figure {
	case bandwidthFigure:
		return figure(float64(r.Size) / float64(r.Median)) // 10⁶ bytes per second are bytes per microsecond
	case rateFigure:
		return 1e6 / r.Median
	}
	return r.Median
}

// A sweepKey is what all sizes of a sweep have in common.
type sweepKey struct {
	test, provider, dir string
	pairs, conns        int64
}

func sweepOf(r Result) sweepKey { return sweepKey{r.Test, r.Provider, r.Dir, r.Pairs, r.Conns} }

// sweeps groups results by what is measured, each group in the order of sizes
// and the groups in that of their first result.
func sweeps(results []Result) (groups [][]Result) {
	at := map[sweepKey]int{}
	for _, r := range results {
		if r.Size == 0 || clusterTest(r.Test) {
			continue
		}
		i, ok := at[sweepOf(r)]
		if !ok {
			i = len(groups)
			at[sweepOf(r)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	for _, g := range groups {
		slices.SortStableFunc(g, func(a, b Result) int { return cmp.Compare(a.Size, b.Size) })
	}
	return groups
}

// maxStep is the largest ratio of two sizes that count as neighbours.
const maxStep = 2

// findCliffs compares neighbouring sizes, at most a power of two apart, of the
// results that are ours. It returns how many pairs it has compared.
func findCliffs(results []Result) (cliffs []Cliff, pairs int) {
	for _, g := range sweeps(results) {
		for i := 1; i < len(g); i++ {
			a, b := g[i-1], g[i]
			if isAnchorName(a.Provider) || a.Size == b.Size || b.Size > maxStep*a.Size {
				continue
			}
			pairs++
			if growth := growthOf(a, b); growth > cliffFactor {
				cliffs = append(cliffs, Cliff{a.Test, a.Provider, a.Size, b.Size, operationTime(a), operationTime(b), growth, absent, sweepOf(a)})
			}
		}
	}
	return cliffs, pairs
}

// growthOf returns how much more than the size time grows from a to b.
func growthOf(a, b Result) figure {
	return operationTime(b) / operationTime(a) / figure(float64(b.Size)/float64(a.Size))
}

// staying returns how many cliffs were there when they were measured again.
func staying(cliffs []Cliff) (n int) {
	for _, c := range cliffs {
		if c.stays() {
			n++
		}
	}
	return n
}

// A measurer measures a test at some sizes.
type measurer func(ctx context.Context, t *test, sizes []int64) ([]Result, error)

// confirm measures both sizes of every cliff again.
func confirm(ctx context.Context, cliffs []Cliff, again measurer) error {
	for i := range cliffs {
		c := &cliffs[i]
		results, err := again(ctx, testNamed(c.Test), []int64{c.From, c.To})
		if err != nil {
			return fmt.Errorf("a cliff of %s, measured again: %w", c.Test, err)
		}
		for _, g := range sweeps(results) {
			if sweepOf(g[0]) == c.key && len(g) == 2 {
				c.Again = growthOf(g[0], g[1])
			}
		}
	}
	return nil
}

// cliffs finds those of results, which are of ours, and measures them again, unless
// links are broken meanwhile.
func (b *bench) cliffs(ctx context.Context, results []Result) ([]Cliff, int, error) {
	found, pairs := findCliffs(results)
	if b.plan != nil || ctx.Err() != nil {
		return found, pairs, nil
	}
	alone := *b
	alone.anchor = nil
	err := confirm(ctx, found, func(ctx context.Context, t *test, sizes []int64) ([]Result, error) {
		results, _, err := alone.runTest(ctx, t, sizes)
		return results, err
	})
	b.mesh, b.notes = alone.mesh, alone.notes
	return found, pairs, err
}

// errCliff is what a run with --fail-on-cliff ends with when a cliff stays.
var errCliff = errors.New("time grows too much between neighbouring sizes")

// judgeCliffs tells of the cliffs that stay, behind everything else, and fails
// because of them if it shall.
func judgeCliffs(w io.Writer, cliffs []Cliff, fail bool) error {
	for _, c := range cliffs {
		if c.stays() {
			fmt.Fprintf(w, "fabric-bench: CLIFF: %v\n", c)
		}
	}
	if n := staying(cliffs); n > 0 && fail {
		return fmt.Errorf("%w: %d stayed when they were measured again", errCliff, n)
	}
	return nil
}

// sizeName writes a number of bytes as people do: 64, 4K, 1M.
func sizeName(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}
