//go:build race

package e2e

// raceEnabled tells that applications are slow: they are this binary.
const raceEnabled = true
