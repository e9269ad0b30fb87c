package appsmoke

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// A reading is the traffic of one service that a meter counted since it was marked.
type reading struct {
	Bytes int64 // given to the clients
	Open  int   // connections
	// Resets are the connections that did not end in order, Refused those that led
	// nowhere; Cause is why the latest of both was.
	Resets, Refused uint64
	Cause           string
	// The longest time in which the clients got nothing.
	PauseFrom, PauseTo time.Time
}

// A meter watches the gateways of a fabricd, as `fabricd gateways` shows them: one that is
// stopped or dead does not answer, and its clients get nothing either.
type meter struct {
	side   *side
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards the fields below
	last map[string]spec.Status
	all  map[string]*watched
}

// A watched is the state that a meter keeps of one service.
type watched struct {
	reading
	moved time.Time // when the clients got something, or the mark
}

// measureEvery is how exact the times of pauses are.
const measureEvery = 20 * time.Millisecond

// measure begins to watch the gateways of s.
func measure(s *side) *meter {
	ctx, cancel := context.WithCancel(context.Background())
	m := &meter{side: s, cancel: cancel, done: make(chan struct{}), last: map[string]spec.Status{}, all: map[string]*watched{}}
	go func() { // ends with end
		defer close(m.done)
		for ctx.Err() == nil {
			m.look(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(measureEvery):
			}
		}
	}()
	return m
}

func (m *meter) end() {
	m.cancel()
	<-m.done
}

// look asks once.
func (m *meter) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	text, err := m.side.admin.Get(ctx, "gateways")
	var body struct{ Gateways []spec.Status }
	if err != nil || json.Unmarshal(text, &body) != nil {
		return
	}
	m.take(body.Gateways, time.Now())
}

// take counts the changes. The counters of a fabricd begin anew with it.
func (m *meter) take(all []spec.Status, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range all {
		name := s.To
		if s.Kind == spec.Expose {
			name = s.Listen
		}
		before, w := m.last[name], m.all[name]
		if w == nil {
			w = &watched{moved: now}
			w.PauseFrom, w.PauseTo = now, now
			m.all[name] = w
		}
		if s.Total < before.Total || s.Back < before.Back {
			before = spec.Status{}
		}
		m.last[name] = s
		w.Open = s.Open
		w.Resets += s.Reset - before.Reset
		w.Refused += s.Refused - before.Refused
		if s.Reset != before.Reset || s.Refused != before.Refused {
			w.Cause = s.Failure
		}
		if s.Back != before.Back {
			w.Bytes += s.Back - before.Back
			w.pause(w.moved, now)
			w.moved = now
		}
	}
}

// mark begins readings.
func (m *meter) mark() {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.all {
		*w = watched{reading{Open: w.Open, PauseFrom: now, PauseTo: now}, now}
	}
}

// read returns the readings so far. A pause lasts until the clients get something: one
// that still lasts counts as one until now.
func (m *meter) read() map[string]reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]reading{}
	for name, w := range m.all {
		r := w.reading
		r.pause(w.moved, time.Now())
		all[name] = r
	}
	return all
}

func (r *reading) pause(from, to time.Time) {
	if to.Sub(from) > r.PauseTo.Sub(r.PauseFrom) {
		r.PauseFrom, r.PauseTo = from, to
	}
}

func TestMeterKnowsTheLongestPause(t *testing.T) {
	at := time.Now()
	m := &meter{last: map[string]spec.Status{}, all: map[string]*watched{}}
	for _, s := range []struct {
		after         time.Duration
		total, resets uint64
		back          int64
	}{{0, 1, 0, 0}, {time.Second, 1, 0, 5}, {3 * time.Second, 2, 1, 9}, {4 * time.Second, 1, 0, 2}} { // the last one is of another process
		m.take([]spec.Status{{Kind: spec.Forward, To: "db", Total: s.total, Reset: s.resets, Back: s.back, Failure: "gone"}}, at.Add(s.after))
	}
	r := m.all["db"].reading
	if got := r.PauseTo.Sub(r.PauseFrom); got != 2*time.Second || !r.PauseFrom.Equal(at.Add(time.Second)) {
		t.Errorf("a pause of %v from %v, want 2s from the first second", got, r.PauseFrom.Sub(at))
	}
	if r.Bytes != 11 || r.Resets != 1 || r.Cause != "gone" {
		t.Errorf("%+v", r)
	}
}
