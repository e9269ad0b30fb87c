//go:build race

package sim_test

// The race detector makes a simulation without goroutines ten times slower and
// finds nothing in it, so that it gets less to do.
const (
	twiceSeeds = 10
	manyNodes  = false
)
