package main

import (
	"cmp"
	"fmt"
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
	Growth   figure `json:"growth"` // After/Before over To/From, above cliffFactor
}

func (c Cliff) String() string {
	return fmt.Sprintf("%s over %s: from %s to %s time grows %.1f times more than the size, %s to %s µs",
		c.Test, c.Provider, sizeName(c.From), sizeName(c.To), float64(c.Growth), short(c.Before), short(c.After))
}

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
			before, after := operationTime(a), operationTime(b)
			growth := after / before / figure(float64(b.Size)/float64(a.Size))
			if growth > cliffFactor {
				cliffs = append(cliffs, Cliff{a.Test, a.Provider, a.Size, b.Size, before, after, growth})
			}
		}
	}
	return cliffs, pairs
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
