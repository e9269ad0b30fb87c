package appsmoke

import (
	"sync"
	"time"
)

// A reading is what a meter saw since it was marked.
type reading struct {
	Bytes int64 `json:"bytes"` // given to the application
	Open  int   `json:"open"`  // connections
	// Ends and Resets are the connections that ended in order and those that did
	// not, Refused those that were never made; each with the first error.
	Ends    int    `json:"ends"`
	Resets  int    `json:"resets"`
	Cause   string `json:"cause,omitempty"`
	Refused int    `json:"refused"`
	Refusal string `json:"refusal,omitempty"`
	// The longest time in which the application got nothing.
	PauseFrom time.Time `json:"pause_from"`
	PauseTo   time.Time `json:"pause_to"`
}

// A meter watches what a service's applications get.
type meter struct {
	mu   sync.Mutex // guards the fields below
	r    reading
	last time.Time // when the application got something, or the mark
}

// mark begins a reading.
func (m *meter) mark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	m.r = reading{Open: m.r.Open, PauseFrom: m.last, PauseTo: m.last}
}

// read returns the reading so far. A pause lasts until an application gets something:
// one that still lasts counts as one until now.
func (m *meter) read() reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.r
	r.pause(m.last, time.Now())
	return r
}

func (r *reading) pause(from, to time.Time) {
	if to.Sub(from) > r.PauseTo.Sub(r.PauseFrom) {
		r.PauseFrom, r.PauseTo = from, to
	}
}

func (m *meter) moved(n int) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Bytes += int64(n)
	m.r.pause(m.last, now)
	m.last = now
}

func (m *meter) opened() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Open++
}

// closed counts a connection that ended with err, nil if it was in order.
func (m *meter) closed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Open--
	if err == nil {
		m.r.Ends++
		return
	}
	m.r.Resets++
	if m.r.Cause == "" {
		m.r.Cause = err.Error()
	}
}

func (m *meter) refused(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Refused++
	if m.r.Refusal == "" {
		m.r.Refusal = err.Error()
	}
}
