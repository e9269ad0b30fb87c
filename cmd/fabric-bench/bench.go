package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// A bench measures tests on a side and its anchor.
type bench struct {
	row      Row // what all rows have in common
	ours     side
	anchor   side            // nil: nothing to compare with
	others   map[string]side // the further anchors of tests, which are started when they are needed
	budget   budget
	reps     int
	seed     uint64
	check    bool
	pairs    int64   // 0: as each test has it
	window   int64   // the same
	rate     float64 // the same
	conns    int64   // up to how many connections conn_scale opens
	progress func(format string, args ...any)
	plan     *plan    // what is broken meanwhile; nil: nothing
	notes    []string // why figures will be absent
	// ending returns what else is to be noted as the run ends; nil: nothing.
	ending  func(ctx context.Context) []string
	counter counterFunc // nil: system calls are not counted

	// meshOf starts n nodes, for patterns of more than two; nil: there can be
	// none. They are kept in mesh for the tests that follow.
	meshOf func(ctx context.Context, n int) (*mesh, error)
	mesh   *mesh
	// sideOf starts an anchor; nil: there are no further ones.
	sideOf func(ctx context.Context, provider string) (side, error)
}

// errNoWindows is the failure of a test on an anchor, which has no windows.
var errNoWindows = fmt.Errorf("%w: an anchor has nothing like it", syscall.EOPNOTSUPP)

// errWrongBytes is the failure of a run in which bytes were wrong.
var errWrongBytes = errors.New("some of the bytes were wrong")

// job returns what a repetition of a test does.
func (b *bench) job(t *test, size int64) job {
	j := job{size: size, seed: b.seed, check: b.check, pairs: 1, rate: b.rate}
	if !t.sizeless {
		j.pairs = cmp.Or(b.pairs, t.pairs, 1)
	}
	if t.windowed {
		j.window = b.window
	}
	return j
}

// A turn is what one side did of a test.
type turn struct {
	side    side
	samples []sample
}

// run measures one test at one size: ours and the anchors in turns, so that
// whatever disturbs the machine meets both, each first in every other turn.
func (b *bench) run(ctx context.Context, t *test, size int64) (ours Result, raw []Result, err error) {
	j := b.job(t, size)
	turns := []*turn{{side: b.ours}}
	anchors, err := b.anchorsOf(ctx, t)
	if err != nil {
		return ours, nil, err
	}
	for _, s := range anchors {
		turns = append(turns, &turn{side: s})
	}
	for rep := range b.reps {
		for i := range turns {
			u := turns[(i+rep)%len(turns)]
			s, err := measure(ctx, u.side, t, j, b.budget, nil)
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
		if err := b.countTurn(ctx, t, j, u); err != nil {
			return ours, nil, fmt.Errorf("%s, %d bytes, to count system calls: %w", t.name, size, err)
		}
		results[i] = t.kind.reduce(b.describe(t, j, u.side), u.samples)
	}
	return results[0], results[1:], nil
}

// anchorsOf returns what a test is measured beside: the anchor of what carries ours,
// and those of the test.
func (b *bench) anchorsOf(ctx context.Context, t *test) (all []side, err error) {
	if b.anchor == nil || t.anchor == nil {
		return nil, nil
	}
	if !t.onlyBeside {
		all = append(all, b.anchor)
	}
	own, _ := b.anchor.about()
	for _, provider := range t.beside {
		if provider == own || b.sideOf == nil {
			continue
		}
		s, ok := b.others[provider]
		if !ok {
			if s, err = b.sideOf(ctx, provider); err != nil {
				return nil, err
			}
			b.others[provider] = s
		}
		all = append(all, s)
	}
	return all, nil
}

// countTurn counts the system calls of a repetition that is not timed.
func (b *bench) countTurn(ctx context.Context, t *test, j job, u *turn) error {
	if b.counter == nil {
		return nil
	}
	s, err := measure(ctx, u.side, t, j, b.budget, b.counter)
	if err != nil {
		return err
	}
	last := &u.samples[len(u.samples)-1]
	last.calls, last.counted = s.calls, s.counted
	return nil
}

// describe returns the row of a test before it is measured.
func (b *bench) describe(t *test, j job, s side) Row {
	r := b.row
	r.Test, r.Dir, r.Size, r.Validated, r.Pairs, r.Conns = t.name, t.dir, j.size, b.check, j.pairs, j.pairs
	if t.window != nil {
		r.Window = t.window(j.size)
	}
	r.Window = cmp.Or(j.window, r.Window)
	r.Provider, r.Security = s.about()
	if t.sizeless {
		r.Size, r.Validated = 0, false
	}
	return r
}

// sizesOf returns at which of the run's sizes a test is measured.
func (t *test) sizesOf(run []int64) []int64 {
	switch {
	case t.sizeless:
		return []int64{1}
	case t.fixed > 0:
		return []int64{t.fixed}
	}
	return run
}

// unsupported reports whether an error says that this door or provider cannot do
// what a test needs.
func unsupported(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, errNoMesh)
}

// runAll measures every test at every size. What was measured before a failure
// is in d.
func (b *bench) runAll(ctx context.Context, picked []*test, sizes []int64, d *Document) error {
	wrong := int64(0)
	for _, t := range picked {
		for _, portion := range b.portions(t, sizes) {
			n, err := b.runPortion(ctx, t, portion, d)
			if wrong += n; err != nil {
				return err
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%w: %d operations", errWrongBytes, wrong)
	}
	return nil
}

// runPortion measures one test at some sizes, adds the results to d, and returns
// how many operations were wrong.
func (b *bench) runPortion(ctx context.Context, t *test, sizes []int64, d *Document) (wrong int64, err error) {
	var results []Result
	var ratios []Ratio
	if b.plan != nil {
		results, ratios, err = b.broken(ctx, t, sizes[0], d)
	} else {
		results, ratios, err = b.runTest(ctx, t, sizes)
	}
	d.Results = append(d.Results, results...)
	d.Ratios = append(d.Ratios, ratios...)
	if unsupported(err) {
		provider, _ := b.ours.about()
		d.note("%s over %s is not measured: %v", t.name, provider, err)
		err = nil
	}
	for _, r := range results {
		wrong += r.Errors
	}
	return wrong, err
}

// runTest measures one test at some sizes.
func (b *bench) runTest(ctx context.Context, t *test, sizes []int64) (results []Result, ratios []Ratio, err error) {
	if t.special != nil {
		results, err = t.special(ctx, b, sizes)
		return results, nil, err
	}
	if t.builderFor(b.ours) == nil {
		return nil, nil, errNoWindows
	}
	for _, size := range sizes {
		ours, raw, err := b.run(ctx, t, size)
		if err != nil {
			return results, ratios, err
		}
		results = append(results, ours)
		for _, r := range raw {
			results = append(results, r)
			ratios = append(ratios, compareRatio(ours, r))
		}
	}
	return results, ratios, nil
}

// note adds a note, once.
func (d *Document) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(d.Notes, n) {
		d.Notes = append(d.Notes, n)
	}
}

func (b *bench) close() error {
	var err error
	if b.mesh != nil {
		err = b.mesh.close()
	}
	if b.anchor != nil {
		err = errors.Join(err, b.anchor.close())
	}
	for _, s := range b.others {
		err = errors.Join(err, s.close())
	}
	return errors.Join(err, b.ours.close())
}
