package faults

import (
	"fmt"
	"strings"
	"time"
)

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

// An effect is one of the counts, with its name and the effects that add to it.
type effect struct {
	effects Effects
	name    string
	count   *uint64
}

// effects are the counts of effects, in the order of their names.
func (c *Counters) effects() [11]effect {
	return [...]effect{
		{Corrupted, "corrupted", &c.Corrupted}, {Delayed, "delayed", &c.Delayed}, {Dropped, "dropped", &c.Dropped},
		{Duplicated, "duplicated", &c.Duplicated}, {Limited, "limited", &c.Limited}, {Overflowed, "overflowed", &c.Overflowed},
		{Oversize, "oversize", &c.Oversize}, {0, "refused", &c.Refused}, {Reordered, "reordered", &c.Reordered},
		{0, "reset", &c.Reset}, {Stopped | Held, "stopped", &c.Stopped},
	}
}

// add counts the effects of a rule on size bytes.
func (c *Counters) add(d Effects, size int) {
	c.Seen++
	c.Bytes += uint64(size)
	for _, x := range c.effects() {
		if d&x.effects != 0 {
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

// Add adds the counts of another rule.
func (c *Counters) Add(o Counters) {
	c.Seen += o.Seen
	c.Bytes += o.Bytes
	more := o.effects()
	for i, x := range c.effects() {
		*x.count += *more[i].count
	}
}

// Fired returns how often the rule did anything.
func (c Counters) Fired() (n uint64) {
	for _, x := range c.effects() {
		n += *x.count
	}
	return n
}

// String describes the effects: "delayed 2000, dropped 418 of 2100 packets and pieces".
func (c Counters) String() string {
	var words []string
	for _, x := range c.effects() {
		if *x.count > 0 {
			words = append(words, fmt.Sprintf("%s %d", x.name, *x.count))
		}
	}
	return fmt.Sprintf("%s of %d packets and pieces", strings.Join(words, ", "), c.Seen)
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
