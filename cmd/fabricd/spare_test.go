package main

import (
	"runtime"
	"testing"

	"github.com/fabricd/fabricd/internal/daemon"
)

// A node whose readers look has a processor of the scheduler more, unless somebody has
// said how many.
func TestReadersThatLookLeaveAProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, c := range []struct {
		latency, environ string
		more             int
	}{{"normal", "", 0}, {"low", "", 1}, {"low", "2", 0}} {
		runtime.GOMAXPROCS(before)
		spareProcessor(daemon.Config{LinkLatency: c.latency}, c.environ)
		if got := runtime.GOMAXPROCS(0); got != before+c.more {
			t.Errorf("%s, GOMAXPROCS=%q: %d processors, want %d", c.latency, c.environ, got, before+c.more)
		}
	}
}
