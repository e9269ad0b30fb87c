package load

import "time"

// maxLag is how much of lost time a pacer makes up for: timers are not exact.
const maxLag = 20 * time.Millisecond

// A Pacer keeps a loop to a rate. Its steps are taken on the beats of the run, which
// are the same for all its applications: those that have fallen due since the last
// beat one after the other. So a process sleeps between two beats instead of waking
// for each step, which costs more than the step does. Time that the loop loses is
// lost: it does not hurry afterwards.
type Pacer struct {
	beat  time.Duration // 0: each step when it is due
	every time.Duration
	next  time.Duration // when the next step is due
}

// Each returns a pacer for one step every so often, the first at once.
func (p *Plan) Each(every, now time.Duration) *Pacer {
	return &Pacer{beat: p.Beat, every: every, next: now}
}

// AtRate returns a pacer for rate steps a second.
func (p *Plan) AtRate(rate float64, now time.Duration) *Pacer {
	return p.Each(time.Duration(float64(time.Second)/rate), now)
}

// Due returns when the next step is taken: on the first beat that is not before it is
// due, or at once.
func (p *Pacer) Due(now time.Duration) time.Duration {
	if p.beat == 0 || p.next <= now {
		return p.next
	}
	return (p.next + p.beat - 1) / p.beat * p.beat
}

// Taken marks the step as taken now.
func (p *Pacer) Taken(now time.Duration) {
	if p.next += p.every; p.next < now-p.beat-maxLag {
		p.next = now
	}
}
