package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// A budget says how many operations a repetition has.
type budget struct {
	iters    int64         // 0: as duration says, or the default for the size
	duration time.Duration // about how long a repetition takes; 0: iters says
	uneven   bool          // what an operation takes may change at any time: duration is looked at meanwhile
	warmup   int64         // negative: a tenth of iters, at most maxWarmup, or of the time
}

const (
	maxWarmup = 1000
	maxIters  = 100_000_000

	// Without --iters and --duration: as many, or more if those take less than
	// leastTime. What the scheduler does for some milliseconds would be all that a
	// shorter repetition measures.
	defaultIters = 10_000
	leastTime    = 50 * time.Millisecond

	// A repetition of large messages has fewer operations, in proportion to
	// their size, so that it takes about as long; but never less than fewIters,
	// if there are so many of small ones.
	largeSize = 64 << 10 // bytes
	fewIters  = 100
)

// fewest returns how few operations a repetition may have: of sizes that not every
// test takes, as many as take the time of fewIters of commonSize.
func fewest(size int64) int64 {
	if size > commonSize {
		return fewIters * commonSize / size
	}
	return fewIters
}

// plan returns the operations to time and to warm up with.
func (b budget) plan(size int64) (iters, warmup int64) {
	iters = b.iters
	if iters == 0 {
		iters = defaultIters
	}
	if size > largeSize {
		iters = max(int64(float64(iters)*largeSize/float64(size)), min(iters, fewest(size)))
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

// fit returns how many operations of this size take about b.duration if n took
// elapsed.
func (b budget) fit(size, n int64, elapsed time.Duration) int64 {
	per := max(elapsed/time.Duration(n), 1)
	return min(max(int64(b.duration/per), min(10, fewest(size))), maxIters)
}

// count returns how many of the planned operations to time, when n took elapsed.
func (b budget) count(size, planned, n int64, elapsed time.Duration) int64 {
	switch {
	case b.duration > 0:
		return b.fit(size, n, elapsed)
	case b.iters == 0:
		return max(planned, budget{duration: leastTime}.fit(size, n, elapsed))
	}
	return planned
}

// more returns how many operations to warm up with after n that took elapsed: 0 if
// that was a tenth of the repetition. What the very first ones take, which wake
// everybody up, tells little of how many the repetition should have.
func (b budget) more(size, n int64, elapsed time.Duration) int64 {
	tenth := budget{duration: b.duration / 10}
	if b.duration == 0 && b.iters == 0 {
		tenth.duration = leastTime / 10
	}
	if b.warmup >= 0 || elapsed >= tenth.duration {
		return 0
	}
	return tenth.fit(size, n, elapsed)
}

// A builder returns the operations of a test on a channel of a side.
type builder func(ctx context.Context, s side, ch *channel, j job) (load, error)

// A test is one thing that is measured.
type test struct {
	name, group, dir string

	help     string
	kind     reduction
	sizeless bool                   // it has no payload
	fixed    int64                  // the only size of its payload in bytes; 0: the run's
	large    bool                   // it takes sizes up to maxSize, otherwise up to commonSize
	pairs    int64                  // how many at once, unless the run says so; 0: one
	window   func(size int64) int64 // operations under way at once; nil: as many as the transport takes
	windowed bool                   // the run's --window takes effect
	threads  bool                   // each pair has a thread of its own

	load, anchor builder // on a side of ours, and on an anchor; nil: nothing to compare with

	// beside are anchors that the test is measured beside too, whatever carries ours,
	// if that has an anchor at all.
	beside []string
	// onlyBeside: what carries ours has nothing like it, and its anchor neither.
	onlyBeside bool

	// special measures the test on its own: its repetitions are no repetitions
	// of one load.
	special func(ctx context.Context, b *bench, sizes []int64) ([]Result, error)
}

// builderFor returns what builds the test's load on a side; nil: nothing does.
func (t *test) builderFor(s side) builder {
	if isAnchor(s) {
		return t.anchor
	}
	return t.load
}

// measure runs one repetition of a test. With a counter it is not timed, and
// its system calls are counted.
func measure(ctx context.Context, s side, t *test, j job, b budget, counter counterFunc) (_ sample, err error) {
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	l := &lineup{test: t, side: s, job: j}
	defer func() {
		err = first(err, l.end())
		if j.size > commonSize {
			debug.FreeOSMemory() // what comes next has as much as this had
		}
	}()
	if err := afford(j, s); err != nil {
		return sample{}, err
	}
	if err := l.man(ctx); err != nil {
		return sample{}, err
	}
	iters, warmup, err := l.warm(ctx, b)
	if err != nil {
		return sample{}, fmt.Errorf("warm-up: %w", err)
	}
	if counter != nil {
		return countCalls(counter, s.processes(), func() (sample, error) { return l.pass(ctx, iters) })
	}
	pass := l.pass
	if b.uneven && b.duration > 0 {
		pass = func(ctx context.Context, n int64) (sample, error) { return l.passFor(ctx, b.duration, n) }
	}
	out, err := pass(ctx, iters)
	out.warmup = warmup
	return out, err
}

// unevenPieces is into how many passes a repetition is divided that looks at the time.
const unevenPieces = 50

// passFor does passes until they have taken d. The first has its share of n
// operations, each other one as many as the one before tells.
func (l *lineup) passFor(ctx context.Context, d time.Duration, n int64) (sum sample, err error) {
	piece := budget{duration: max(d/unevenPieces, 1)}
	for n = max(n/unevenPieces, 1); ; {
		one, err := l.pass(ctx, n)
		if err != nil {
			return sum, err
		}
		if sum.add(one); sum.elapsed >= d {
			return sum, nil
		}
		n = piece.fit(l.job.size, n, one.elapsed)
	}
}

// add adds what the next pass of the same repetition has measured.
func (s *sample) add(next sample) {
	if s.ops == 0 {
		*s = next
		return
	}
	if s.lat != nil && next.lat != nil {
		s.lat.Merge(next.lat)
	}
	// Fairness is that of the pieces, each as heavy as it was long.
	share := figure(next.elapsed) / figure(max(s.elapsed+next.elapsed, 1))
	s.fairness += (next.fairness - s.fairness) * share
	s.elapsed += next.elapsed
	s.ops, s.bytes, s.errors = s.ops+next.ops, s.bytes+next.bytes, s.errors+next.errors
	s.cpu, s.mallocs, s.switches, s.wire = s.cpu+next.cpu, s.mallocs+next.mallocs, s.switches+next.switches, s.wire+next.wire
}

// pilotIters is how many operations tell how long one takes.
const pilotIters = 16

// warm does the untimed operations, and returns how many to time and how many of
// them there were.
func (l *lineup) warm(ctx context.Context, b budget) (iters, warmup int64, err error) {
	iters, warmup = b.plan(l.job.size)
	if b.duration > 0 && b.warmup < 0 {
		pilot, err := l.pass(ctx, min(warmup, pilotIters))
		if err != nil {
			return 0, 0, err
		}
		tenth := budget{duration: b.duration / 10}
		warmup = min(warmup, tenth.fit(l.job.size, min(warmup, pilotIters), pilot.elapsed))
	}
	if warmup == 0 {
		return iters, 0, nil
	}
	n := warmup
	w, err := l.pass(ctx, n)
	if err != nil {
		return 0, 0, err
	}
	if more := b.more(l.job.size, n, w.elapsed); more > 0 {
		if w, err = l.pass(ctx, more); err != nil {
			return 0, 0, err
		}
		n, warmup = more, warmup+more
	}
	return b.count(l.job.size, iters, n, w.elapsed), warmup, nil
}

// A counterFunc starts to count the system calls of this process and others.
type counterFunc func(pids ...int) (*callCounter, error)

// countCalls returns how many system calls a pass costs, and nothing of its
// times: to count makes everything slower.
func countCalls(counter counterFunc, pids []int, pass func() (sample, error)) (sample, error) {
	c, err := counter(pids...)
	if err != nil {
		return sample{}, uncounted(err)
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
