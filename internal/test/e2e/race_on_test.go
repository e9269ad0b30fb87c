//go:build race

package e2e

// raceEnabled reports that applications are slow: they are this binary.
const raceEnabled = true
