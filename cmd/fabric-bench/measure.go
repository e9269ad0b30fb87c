package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"
)

// A budget says how many operations a repetition has.
type budget struct {
	iters    int64         // 0: as duration says, or the default for the size
	duration time.Duration // about how long a repetition takes; 0: iters says
	warmup   int64         // negative: a tenth of iters, at most maxWarmup
}

const (
	maxWarmup = 1000
	maxIters  = 100_000_000

	// Without --iters and --duration.
	defaultIters = 10_000

	// A repetition of large messages has fewer operations, in proportion to
	// their size, so that it takes about as long; but never less than fewIters,
	// if there are so many of small ones.
	largeSize = 64 << 10 // bytes
	fewIters  = 100
)

// plan returns the operations to time and to warm up with.
func (b budget) plan(size int64) (iters, warmup int64) {
	iters = b.iters
	if iters == 0 {
		iters = defaultIters
	}
	if size > largeSize {
		iters = max(int64(float64(iters)*largeSize/float64(size)), min(iters, fewIters))
	}
	warmup = b.warmup
	if warmup < 0 {
		warmup = min(max(iters/10, 1), maxWarmup)
	}
	if b.duration > 0 {
		warmup = max(warmup, 1) // it tells how long an operation takes
	}
	return iters, warmup
}

// fit returns how many operations take about b.duration if n took elapsed.
func (b budget) fit(n int64, elapsed time.Duration) int64 {
	per := max(elapsed/time.Duration(n), 1)
	return min(max(int64(b.duration/per), 10), maxIters)
}

// A test is one thing that is measured.
type test struct {
	name, dir string
	help      string
	kind      reduction
	sizeless  bool                   // it has no payload
	window    func(size int64) int64 // operations under way at once; nil: as many as the transport takes

	// load returns the operations on a side of ours, anchor on quic-go alone.
	load, anchor func(ctx context.Context, s side, ch *channel, j job) (load, error)
}

// measure runs one repetition of a test. With a counter it is not timed, and
// its system calls are counted.
func measure(ctx context.Context, s side, t *test, build func(context.Context, side, *channel, job) (load, error),
	j job, b budget, counter func() (*callCounter, error)) (_ sample, err error) {
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	var ch *channel
	if !t.sizeless {
		if ch, err = s.dial(ctx); err != nil {
			return sample{}, err
		}
		defer context.AfterFunc(ctx, ch.abort)()
		defer func() { err = first(err, ch.close()) }()
	}
	l, err := build(ctx, s, ch, j)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = first(err, l.end()) }()
	iters, warmup := b.plan(j.size)
	if warmup > 0 {
		w, err := pass(ctx, s, l, t, j, warmup)
		if err != nil {
			return sample{}, fmt.Errorf("warm-up: %w", err)
		}
		if b.duration > 0 {
			iters = b.fit(warmup, w.elapsed)
		}
	}
	if counter != nil {
		return countCalls(counter, func() (sample, error) { return pass(ctx, s, l, t, j, iters) })
	}
	out, err := pass(ctx, s, l, t, j, iters)
	out.warmup = warmup
	return out, err
}

// countCalls returns how many system calls a pass costs, and nothing of its
// times: to count makes everything slower.
func countCalls(counter func() (*callCounter, error), pass func() (sample, error)) (sample, error) {
	c, err := counter()
	if err != nil {
		return sample{}, err
	}
	defer c.close()
	before, err := c.count()
	if err != nil {
		return sample{}, err
	}
	out, err := pass()
	if err != nil {
		return sample{}, err
	}
	after, err := c.count()
	return sample{calls: after - before, counted: out.ops, errors: out.errors}, err
}

// first returns the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// pass does n operations on a side.
func pass(ctx context.Context, s side, l load, t *test, j job, n int64) (sample, error) {
	out := sample{ops: n}
	if !t.sizeless {
		out.bytes = n * j.size
	}
	runtime.GC() // what came before is not paid for here
	if err := l.begin(n); err != nil {
		return out, err
	}
	wireBefore, wireErr := s.traffic(ctx)
	before, err := usage()
	if err != nil {
		return out, err
	}
	if t.kind.bandwidth {
		err = out.stream(l, n)
	} else {
		err = out.each(l, n)
	}
	if err != nil {
		return out, err
	}
	after, err := usage()
	if wire, unmetered := s.traffic(ctx); wireErr == nil && unmetered == nil {
		out.wire = wire - wireBefore
	}
	out.cpu, out.mallocs = after.cpu-before.cpu, after.mallocs-before.mallocs
	if v, ok := l.(interface{ verify(int64) (int64, error) }); ok && err == nil {
		var wrong int64
		wrong, err = v.verify(n)
		out.errors += wrong
	}
	return out, err
}

// each times every operation.
func (s *sample) each(l load, n int64) error {
	s.lat = newHistogram()
	for i := range n {
		if err := l.prepare(i); err != nil {
			return err
		}
		began := time.Now()
		if err := l.op(i); err != nil {
			return err
		}
		took := time.Since(began)
		record(s.lat, took)
		s.elapsed += took
		wrong, err := l.check(i)
		if err != nil {
			return err
		}
		s.errors += wrong
	}
	_, err := l.drain()
	return err
}

// stream times all operations together.
func (s *sample) stream(l load, n int64) error {
	began := time.Now()
	for i := range n {
		if err := l.prepare(i); err != nil {
			return err
		}
		if err := l.op(i); err != nil {
			return err
		}
	}
	wrong, err := l.drain()
	s.elapsed = time.Since(began)
	s.errors += wrong
	return err
}

// A spending is what this process has used so far.
type spending struct {
	cpu     time.Duration
	mallocs int64
}

func usage() (spending, error) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return spending{}, fmt.Errorf("getrusage: %w", err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return spending{time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), int64(m.Mallocs)}, nil
}

// A bench measures tests on a side and its anchor.
type bench struct {
	row      Row // what all rows have in common
	ours     side
	anchor   side // nil: nothing to compare with
	budget   budget
	reps     int
	seed     uint64
	check    bool
	progress func(format string, args ...any)
	notes    []string                     // why figures will be absent
	counter  func() (*callCounter, error) // nil: system calls are not counted
}

// errWrongBytes is the failure of a run in which bytes were wrong.
var errWrongBytes = errors.New("some of the bytes were wrong")

// run measures one test at one size: ours and the anchor in turns, so that
// whatever disturbs the machine meets both, each first in every other turn.
func (b *bench) run(ctx context.Context, t *test, size int64) (ours Result, raw *Result, err error) {
	j := job{size: size, seed: b.seed, check: b.check}
	type turn struct {
		side    side
		build   func(context.Context, side, *channel, job) (load, error)
		samples []sample
	}
	turns := []*turn{{side: b.ours, build: t.load}}
	if b.anchor != nil {
		turns = append(turns, &turn{side: b.anchor, build: t.anchor})
	}
	for rep := range b.reps {
		for i := range turns {
			u := turns[(i+rep)%len(turns)]
			s, err := measure(ctx, u.side, t, u.build, j, b.budget, nil)
			if err != nil {
				provider, _ := u.side.about()
				return ours, nil, fmt.Errorf("%s, %d bytes, %s, repetition %d: %w", t.name, size, provider, rep+1, err)
			}
			u.samples = append(u.samples, s)
			b.progress("%s, %d bytes: repetition %d of %d", t.name, size, rep+1, b.reps)
		}
	}
	results := make([]Result, len(turns))
	for i, u := range turns {
		if b.counter != nil {
			s, err := measure(ctx, u.side, t, u.build, j, b.budget, b.counter)
			if err != nil {
				return ours, nil, fmt.Errorf("%s, %d bytes, to count system calls: %w", t.name, size, err)
			}
			last := &u.samples[len(u.samples)-1]
			last.calls, last.counted = s.calls, s.counted
		}
		results[i] = t.kind.reduce(b.describe(t, size, u.side), u.samples)
	}
	if len(results) > 1 {
		raw = &results[1]
	}
	return results[0], raw, nil
}

// describe returns the row of a test before it is measured.
func (b *bench) describe(t *test, size int64, s side) Row {
	r := b.row
	r.Test, r.Dir, r.Size, r.Validated = t.name, t.dir, size, b.check
	if t.window != nil {
		r.Window = t.window(size)
	}
	r.Provider, r.Security = s.about()
	if t.sizeless {
		r.Size, r.Validated = 0, false
	}
	return r
}
