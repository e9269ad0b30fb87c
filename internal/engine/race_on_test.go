//go:build race

package engine_test

// Under the race detector sync.Pool drops things at random.
const raceEnabled = true
