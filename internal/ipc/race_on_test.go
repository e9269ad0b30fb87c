//go:build race

package ipc

// Under the race detector things allocate that do not otherwise.
const raceEnabled = true
