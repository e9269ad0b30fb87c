//go:build race

package check_test

// The race detector makes a checker without goroutines ten times slower and
// finds nothing in it, so that it gets less to do.
const (
	manyRecords    = 100_000
	spoiltPerCheck = 1
)
