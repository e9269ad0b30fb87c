//go:build !race

package check_test

const (
	manyRecords    = 1_000_000 // of TestLargeHistory
	spoiltPerCheck = 6         // mutations of a history
)
