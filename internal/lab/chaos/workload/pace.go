package workload

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/load"
)

// paced waits until the next step of p is taken, or one of two channels is closed; then
// it returns false. The timer is the caller's.
func (a *App) paced(p *load.Pacer, timer *time.Timer, done, over <-chan struct{}) bool {
	timer.Reset(time.Until(a.log.clock.Wall(p.Due(a.Now()))))
	select {
	case <-timer.C:
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
	p.Taken(a.Now())
	return true
}

// every calls f so often until over is closed.
func (a *App) every(each time.Duration, over <-chan struct{}, f func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := a.c.Plan.Each(each, a.Now()); a.paced(p, timer, nil, over); {
		f()
	}
}
