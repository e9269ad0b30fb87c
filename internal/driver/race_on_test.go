//go:build race

package driver_test

// Under the race detector sync.Pool drops things at random.
const raceEnabled = true
