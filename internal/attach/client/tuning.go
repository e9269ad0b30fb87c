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

// Settings of an application, in its environment.
const (
	envLatency = "FABRIC_LATENCY"
	envSpin    = "FABRIC_SPIN"
	envHuge    = "FABRIC_HUGE_PAGES"
)

// maxSpin bounds FABRIC_SPIN: a look takes tens of nanoseconds, so that this is
// the better part of a second, and nobody should wait for that awake.
const maxSpin = 1 << 24

// A tuning is what an application's environment says of its own part in the
// traffic within a machine:
//
//	FABRIC_LATENCY     normal, or low: a call that waits for another application
//	                   keeps its processor for some milliseconds
//	FABRIC_SPIN        how often a call looks at its ring before it sleeps, at
//	                   most: 0, never, to 16777216. Not set, a few hundred times
//	                   where there are processors for it, with low latency longer
//	FABRIC_HUGE_PAGES  off, try or require: whether window memory lies in huge
//	                   pages, as far as it fills some
type tuning struct {
	low  bool
	spin int // looks; not set: -1
	huge shm.HugePages
}

// readTuning reads the settings by their names.
func readTuning(env func(string) string) (t tuning, err error) {
	if t.low, err = lowLatency(env(envLatency)); err != nil {
		return t, err
	}
	t.spin = -1
	if text := env(envSpin); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n > maxSpin {
			return t, fmt.Errorf("%s is %q, want a number of looks from 0 to %d: %w", envSpin, text, maxSpin, status.Invalid)
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

// ringHabits are what the node says of all channels of a session, asked once.
type ringHabits struct {
	mu    sync.Mutex // guards the fields below; not held while the node is asked
	known bool
	body  proto.RingsBody
}

// get returns them; those of a node that does not know the question are the
// default's. What the node says is checked here. quit ends the wait for it.
func (r *ringHabits) get(c *client, quit <-chan struct{}) (proto.RingsBody, error) {
	r.mu.Lock()
	known, body := r.known, r.body
	r.mu.Unlock()
	if known {
		return body, nil
	}
	f, err := c.ask(context.Background(), question{op: proto.OpRings, quit: quit, ended: status.Reset}, &body)
	if f != nil {
		f.Close()
	}
	switch {
	case status.Of(err) == status.NotSupp:
		body = proto.RingsBody{Release: uint8(ring.Default.Release)}
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
