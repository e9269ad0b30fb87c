package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A lineup is what one repetition of a test needs: a channel and a load for
// each of its pairs.
type lineup struct {
	test  *test
	side  side
	job   job
	chans []*channel
	loads []load
	stops []func() bool // of what aborts the channels when the context ends
}

// man opens the channels and builds the loads.
func (l *lineup) man(ctx context.Context) error {
	build := l.test.builderFor(l.side)
	for i := range max(l.job.pairs, 1) {
		var ch *channel
		if !l.test.sizeless {
			var err error
			if ch, err = l.side.dial(ctx, int(i)); err != nil {
				return err
			}
			l.chans = append(l.chans, ch)
			l.stops = append(l.stops, context.AfterFunc(ctx, ch.abort))
		}
		one, err := build(ctx, l.side, ch, l.job)
		if err != nil {
			return err
		}
		l.loads = append(l.loads, one)
	}
	return nil
}

// end gives everything back and returns the first error of that.
func (l *lineup) end() (err error) {
	for _, one := range l.loads {
		err = first(err, one.end())
	}
	for i, ch := range l.chans {
		err = first(err, ch.close())
		l.stops[i]()
	}
	return err
}

// pass does n operations on every load, all at once, and says what that took.
func (l *lineup) pass(ctx context.Context, n int64) (sample, error) {
	runtime.GC() // what came before is not paid for here
	for _, one := range l.loads {
		if err := one.begin(n); err != nil {
			return sample{}, err
		}
	}
	wireBefore, wireErr := l.side.traffic(ctx)
	before, err := usage(l.side.processes())
	if err != nil {
		return sample{}, err
	}
	out, err := l.run(n)
	if err != nil {
		return out, err
	}
	after, err := usage(l.side.processes())
	if wire, unmetered := l.side.traffic(ctx); wireErr == nil && unmetered == nil {
		out.wire = wire - wireBefore
	}
	out.spent = true
	out.cpu, out.mallocs, out.switches = after.cpu-before.cpu, after.mallocs-before.mallocs, max(after.switches-before.switches, 0)
	for _, one := range l.loads {
		if v, ok := one.(verifier); ok && err == nil {
			var wrong int64
			wrong, err = v.verify(n)
			out.errors += wrong
		}
	}
	return out, err
}

// A verifier is a load whose bytes are checked when all is over.
type verifier interface {
	// verify returns how much of n operations was wrong.
	verify(n int64) (wrong int64, err error)
}

// A runner is a load that does all its operations by itself.
type runner interface {
	// run does n operations and puts what it measured into s.
	run(n int64, s *sample) error
}

// run does n operations on every load: on the caller's goroutine if there is
// one load, otherwise on one each, which begin together, and on a thread each if
// the test says so.
func (l *lineup) run(n int64) (sample, error) {
	if len(l.loads) == 1 {
		return l.one(l.loads[0], n)
	}
	parts, errs := make([]sample, len(l.loads)), make([]error, len(l.loads))
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, one := range l.loads {
		all.Go(func() {
			if l.test.threads {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			<-start
			parts[i], errs[i] = l.one(one, n)
		})
	}
	began := time.Now()
	close(start)
	all.Wait()
	return together(parts, time.Since(began)), errors.Join(errs...)
}

// one does n operations on a load.
func (l *lineup) one(one load, n int64) (sample, error) {
	out := sample{ops: n}
	if !l.test.sizeless {
		out.bytes = n * l.job.size
	}
	if r, ok := one.(runner); ok {
		err := r.run(n, &out)
		return out, err
	}
	if l.test.kind.timesAll() {
		return out, out.stream(one, n)
	}
	return out, out.each(one, n)
}

// together returns the sum of what was measured at the same time, and took
// elapsed altogether.
func together(parts []sample, elapsed time.Duration) sample {
	sum := sample{elapsed: elapsed}
	var rates []figure
	for _, p := range parts {
		sum.ops += p.ops
		sum.bytes += p.bytes
		sum.errors += p.errors
		rates = append(rates, figure(float64(p.ops)/max(p.elapsed, 1).Seconds()))
		if p.lat == nil {
			continue
		}
		if sum.lat == nil {
			sum.lat = newHistogram()
		}
		sum.lat.Merge(p.lat)
	}
	sum.fairness = jain(rates)
	return sum
}

// jain returns Jain's fairness index of shares: 1 if all are equal, 1/n if one
// of n has everything.
func jain(shares []figure) figure {
	var sum, squares figure
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return absent
	}
	return sum * sum / (figure(len(shares)) * squares)
}

// A spending is what this process and others have used so far.
type spending struct {
	cpu      time.Duration
	mallocs  int64 // of this process alone
	switches int64 // of threads that gave up their processor or lost it
}

func usage(others []int) (spending, error) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return spending{}, fmt.Errorf("getrusage: %w", err)
	}
	cpu, switches := time.Duration(ru.Utime.Nano()+ru.Stime.Nano()), int64(ru.Nvcsw+ru.Nivcsw)
	for _, pid := range others {
		used, err := runTime(pid)
		if err != nil {
			return spending{}, err
		}
		n, err := switchesOf(pid)
		if err != nil {
			return spending{}, err
		}
		cpu, switches = cpu+used, switches+n
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return spending{cpu, int64(m.Mallocs), switches}, nil
}
