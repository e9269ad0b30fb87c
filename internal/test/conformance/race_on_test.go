//go:build race

package conformance

// Under the race detector sync.Pool drops things at random.
const raceEnabled = true
