package workload

import "time"

// maxLag is how much of lost time a pacer makes up for: timers are not exact.
const maxLag = 20 * time.Millisecond

// A pacer keeps a loop to a rate. Its steps are taken on the beats of the run, which
// are the same for all its applications: those that have fallen due since the last
// beat one after the other. So a process sleeps between two beats instead of waking
// for each step, which costs more than the step does. Time that the loop loses is
// lost: it does not hurry afterwards. One goroutine uses it.
type pacer struct {
	clock *Clock
	beat  time.Duration // 0: each step when it is due
	every time.Duration
	next  time.Duration // when the next step is due, on the clock
	timer *time.Timer
}

// newPacer returns a pacer for one step every so often; the first is due at once.
// The caller stops it.
func newPacer(clock *Clock, beat, every time.Duration) *pacer {
	p := &pacer{clock: clock, beat: beat, every: every, next: clock.Now(), timer: time.NewTimer(0)}
	p.arm(p.next)
	return p
}

// atRate returns a pacer for rate steps per second.
func (a *App) atRate(rate int) *pacer { return a.each(time.Second / time.Duration(rate)) }

// each returns a pacer for one step every so often.
func (a *App) each(every time.Duration) *pacer {
	return newPacer(a.log.clock, time.Duration(a.c.Beat), every)
}

// wait waits until the next step is taken, or one of two channels is closed; then
// it returns false.
func (p *pacer) wait(done, over <-chan struct{}) bool {
	select {
	case <-p.timer.C:
	case <-done:
		return false
	case <-over:
		return false
	}
	select { // it comes first if the step is due as well
	case <-over:
		return false
	default:
	}
	now := p.clock.Now()
	p.next = following(p.next, now, p.every, p.beat)
	p.arm(now)
	return true
}

// following returns when the step after one that was due at last is due. Now is when
// that one is taken.
func following(last, now, every, beat time.Duration) time.Duration {
	next := last + every
	if next < now-beat-maxLag {
		return now
	}
	return next
}

// onBeat returns the first beat that is not before due; one that is not after now is
// taken at once.
func onBeat(due, now, beat time.Duration) time.Duration {
	if beat == 0 || due <= now {
		return due
	}
	return (due + beat - 1) / beat * beat
}

func (p *pacer) arm(now time.Duration) {
	p.timer.Reset(time.Until(p.clock.Wall(onBeat(p.next, now, p.beat))))
}

func (p *pacer) stop() { p.timer.Stop() }
