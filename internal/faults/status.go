package faults

import "time"

// A State is where a rule is in its incarnation.
type State string

// The states.
const (
	Waiting State = "waiting" // for its After
	Active  State = "active"
	Resting State = "resting" // in the Down of its flapping
	Ended   State = "ended"   // removed, or its For has passed
)

// A Status is a rule of a Plane and its effects.
type Status struct {
	Rule  Rule      `json:"rule"`
	State State     `json:"state"`
	Added time.Time `json:"added"` // wall clock, for people
	// Left is how long the rule goes on; empty: until it is removed.
	Left   Duration `json:"left,omitempty"`
	Counts Counters `json:"counts"`
}

// Counters count a rule's effects: that it fired at all is the proof that a test broke the link
// that it meant to break. Each counts packets, or pieces of streams.
type Counters struct {
	Seen       uint64 `json:"seen"` // that the rule covered while it acted
	Bytes      uint64 `json:"bytes"`
	Dropped    uint64 `json:"dropped"`    // by drop
	Stopped    uint64 `json:"stopped"`    // dropped or kept waiting by cut, half_open, hold or udp_blocked
	Oversize   uint64 `json:"oversize"`   // dropped by mtu
	Overflowed uint64 `json:"overflowed"` // dropped by rate
	Delayed    uint64 `json:"delayed"`    // by delay or jitter
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Corrupted  uint64 `json:"corrupted"`
	Limited    uint64 `json:"limited"` // delayed by rate
	Refused    uint64 `json:"refused"` // connections refused by half_open
	Reset      uint64 `json:"reset"`   // connections ended by reset
}

// add counts the effects of a rule on size bytes.
func (c *Counters) add(d Deeds, size int) {
	c.Seen++
	c.Bytes += uint64(size)
	for _, x := range []struct {
		deed  Deeds
		count *uint64
	}{
		{Dropped, &c.Dropped}, {Stopped | Held, &c.Stopped}, {Oversize, &c.Oversize}, {Overflowed, &c.Overflowed},
		{Delayed, &c.Delayed}, {Duplicated, &c.Duplicated}, {Reordered, &c.Reordered}, {Corrupted, &c.Corrupted},
		{Limited, &c.Limited},
	} {
		if d&x.deed != 0 {
			*x.count++
		}
	}
}

// addGate counts the effects of a rule on one stream.
func (c *Counters) addGate(stopped, refused, reset bool) {
	for _, x := range []struct {
		on    bool
		count *uint64
	}{{stopped, &c.Stopped}, {refused, &c.Refused}, {reset, &c.Reset}} {
		if x.on {
			*x.count++
		}
	}
}

// Fired returns how often the rule did anything.
func (c Counters) Fired() uint64 {
	return c.Dropped + c.Stopped + c.Oversize + c.Overflowed + c.Delayed + c.Duplicated +
		c.Reordered + c.Corrupted + c.Limited + c.Refused + c.Reset
}

// status returns the entry as of now. The Plane's mu is held.
func (e *entry) status(now time.Duration) Status {
	age := now - e.added
	st := Status{Rule: e.rule, Added: e.wall.UTC(), Counts: e.counts, State: Active}
	acts, _ := e.rule.Acts(age)
	switch {
	case e.rule.Over(age):
		st.State = Ended
	case age < time.Duration(e.rule.After):
		st.State = Waiting
	case !acts:
		st.State = Resting
	}
	if e.rule.For > 0 {
		st.Left = max(e.rule.After+e.rule.For-Duration(age), 0)
	}
	return st
}

// List returns the rules that are there, in the order of their addition, and
// with ended before them the last ones that have ended.
func (p *Plane) List(ended bool) []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expire(now)
	all := []Status{}
	if ended {
		all = append(all, p.ended...)
	}
	for _, e := range p.rules {
		all = append(all, e.status(now))
	}
	return all
}
