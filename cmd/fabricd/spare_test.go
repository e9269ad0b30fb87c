package main

import (
	"runtime"
	"testing"

	"github.com/fabricd/fabricd/internal/daemon"
)

// A node whose readers look has a processor of the scheduler more, unless somebody has
// said how many, or a quota.
func TestReadersThatLookLeaveAProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, c := range []struct {
		config  daemon.Config
		environ string
		machine int
		more    int
	}{
		{daemon.Config{LinkLatency: "normal"}, "", before, 0},
		{daemon.Config{LinkLatency: "low"}, "", before, 1},
		{daemon.Config{LinkLatency: "low"}, "2", before, 0},
		{daemon.Config{LinkLatency: "low"}, "", before + 2, 0}, // a quota
		{daemon.Config{LinkLatency: "low", EnableFaults: true}, "", before, 0},
	} {
		runtime.GOMAXPROCS(before)
		spareProcessor(c.config, c.environ, c.machine)
		if got := runtime.GOMAXPROCS(0); got != before+c.more {
			t.Errorf("%s, faults %v, GOMAXPROCS=%q, %d of the machine: %d processors, want %d",
				c.config.LinkLatency, c.config.EnableFaults, c.environ, c.machine, got, before+c.more)
		}
	}
}
