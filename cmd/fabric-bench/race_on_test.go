//go:build race

package main

// Under the race detector ten thousand connections take longer than all other tests.
const raceEnabled = true
