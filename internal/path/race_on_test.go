//go:build race

package path

// Under the race detector sync.Pool drops things at random.
const raceEnabled = true
