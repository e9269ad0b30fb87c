//go:build race

package sim_test

// The race detector makes a simulation ten times slower and has little to find
// in it: only the tests have goroutines, one for each run. So it gets less to do
// here, and `make test` runs all of it without the detector besides.
const (
	twiceSeeds  = 2
	randomSeeds = 2
	manyNodes   = false
	suiteEvery  = 10
	hours       = 2
	changes     = 1000
)
