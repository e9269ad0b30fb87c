package client

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// Environment variables of an application.
const (
	envLatency = "FABRIC_LATENCY"
	envSpin    = "FABRIC_SPIN"
	envHuge    = "FABRIC_HUGE_PAGES"
)

// maxSpin bounds FABRIC_SPIN: a poll takes tens of nanoseconds, so that this is most of a second,
// the longest sensible busy-poll.
const maxSpin = 1 << 24

// A tuning is the application's settings for the traffic within a machine, from its environment:
//
//	FABRIC_LATENCY     normal, or low: a call that waits for another application
//	                   keeps its processor for some milliseconds
//	FABRIC_SPIN        how often a call polls its ring before it sleeps, at
//	                   most: 0, never, to 16777216. Not set, a few hundred times
//	                   where there are enough processors, with low latency longer
//	FABRIC_HUGE_PAGES  off, try or require: whether window memory lies in huge
//	                   pages, as far as it fills some
type tuning struct {
	low  bool
	spin int // polls; -1: not set
	huge shm.HugePages
}

// readTuning reads the settings with env.
func readTuning(env func(string) string) (t tuning, err error) {
	if t.low, err = lowLatency(env(envLatency)); err != nil {
		return t, err
	}
	t.spin = -1
	if text := env(envSpin); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n > maxSpin {
			return t, fmt.Errorf("%s is %q, want a number of polls from 0 to %d: %w", envSpin, text, maxSpin, status.Invalid)
		}
		t.spin = int(n)
	}
	if t.low && t.spin == 0 {
		return t, fmt.Errorf("%s is 0, which never watches, and %s is low, which does nothing else: %w", envSpin, envLatency, status.Invalid)
	}
	if text := env(envHuge); text != "" {
		var ok bool
		if t.huge, ok = shm.ParseHugePages(text); !ok {
			return t, fmt.Errorf("%s is %q, want %s: %w", envHuge, text, shm.HugeAllowed, status.Invalid)
		}
	}
	return t, nil
}

// ringSettings are the node's settings for all shared-memory paths of a session, requested once.
type ringSettings struct {
	mu    sync.Mutex // guards the fields below; not held while the node is asked
	known bool
	body  proto.RingsBody
}

// get returns them. It checks the node's answer. quit ends the wait for it.
func (r *ringSettings) get(c *session, quit <-chan struct{}) (proto.RingsBody, error) {
	r.mu.Lock()
	known, body := r.known, r.body
	r.mu.Unlock()
	if known {
		return body, nil
	}
	f, err := c.ask(context.Background(), request{op: proto.OpRings, quit: quit, ended: status.Reset}, &body)
	if f != nil {
		f.Close()
	}
	switch {
	case err != nil:
		return body, err
	case int(body.Release) > ring.MaxRelease || !body.Huge.Valid():
		return body, fmt.Errorf("node wants a release of %d%% and %v: %w", body.Release, body.Huge, status.Protocol)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.body = true, body
	return body, nil
}
