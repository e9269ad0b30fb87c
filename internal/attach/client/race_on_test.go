//go:build race

package client

// Under the race detector things allocate that do not otherwise.
const raceEnabled = true
