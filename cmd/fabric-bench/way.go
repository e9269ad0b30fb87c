package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A way is the network between two machines: its round-trip time, and its bit rate in each
// direction.
type way struct {
	roundTrip time.Duration
	bits      int64
}

// The bounds of a way.
const (
	longestTrip = 10 * time.Second
	leastBits   = 1_000_000
	mostBits    = 100_000_000_000
)

// parseWay reads "25ms/1Gbit": the time of a round trip, and a rate in Mbit or Gbit.
func parseWay(s string) (w way, err error) {
	trip, rate, ok := strings.Cut(s, "/")
	if !ok {
		return w, fmt.Errorf("--way %q: want the time there and back and the rate, as 25ms/1Gbit", s)
	}
	w.roundTrip, err = time.ParseDuration(trip)
	if err != nil || w.roundTrip < 0 || w.roundTrip > longestTrip {
		return w, fmt.Errorf("--way %q: the time there and back is 0s to %v", s, longestTrip)
	}
	unit := int64(1_000_000)
	digits, mega := strings.CutSuffix(rate, "Mbit")
	if !mega {
		var giga bool
		if digits, giga = strings.CutSuffix(rate, "Gbit"); !giga {
			return w, fmt.Errorf("--way %q: the rate is in Mbit or Gbit", s)
		}
		unit = 1_000_000_000
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < leastBits/unit || n > mostBits/unit || n < 1 {
		return w, fmt.Errorf("--way %q: the rate is 1Mbit to 100Gbit", s)
	}
	w.bits = n * unit
	return w, nil
}

// A line is one direction of a way: a queue in front of a wire. It has no clock: callers pass the
// time.
type line struct {
	way   way
	queue time.Duration // capacity of the queue, in time on the wire
	free  time.Time     // when the wire is free again
}

// queueOf is the capacity of a line's queue: the bytes that the wire carries in a round trip, as in
// common routers, and at least 10 ms.
func queueOf(w way) time.Duration { return max(w.roundTrip, 10*time.Millisecond) }

func newLine(w way) *line { return &line{way: w, queue: queueOf(w)} }

// pass returns when a packet of n bytes that arrives now is at the other end; false: the queue is
// full, and the packet is dropped.
func (l *line) pass(now time.Time, n int) (time.Time, bool) {
	start := now
	if l.free.After(now) {
		start = l.free
	}
	if start.Sub(now) > l.queue {
		return time.Time{}, false
	}
	l.free = start.Add(time.Duration(int64(n) * 8 * int64(time.Second) / l.way.bits))
	return l.free.Add(l.way.roundTrip / 2), true
}

// relayCommand is the hidden command of the process that simulates a way.
const relayCommand = "relay"
