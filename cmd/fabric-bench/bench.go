package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// A bench measures cases. It runs on one goroutine, locked to its thread: the children die with it.
type bench struct {
	o        *runOptions
	report   *Report
	progress func(format string, args ...any)

	lab    *lab // nil: none is running
	setup  setup
	apps   *appServers // nil: none are running; in the lab
	missed []error     // of cases that could not be measured
	began  time.Time   // start of the first case
}

// The bounds of --quick. A busy machine needs them: UCX, for one, takes minutes if two busy-polling
// processes share a processor.
const (
	quickRun  = 70 * time.Second // no case begins later
	quickCase = 15 * time.Second // the measurements of a case
	quickTool = 5 * time.Second  // a third-party benchmark
)

// errNoTimeLeft is the reason why a case of --quick is left out.
var errNoTimeLeft = errors.New("left out: the minute of --quick is over")

// bounded returns ctx with a limit that only --quick has.
func (b *bench) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if b.o.quick {
		return context.WithTimeout(ctx, limit)
	}
	return context.WithCancel(ctx)
}

// during is how long one measurement takes; long ones are for networks on which a connection takes
// a while to reach its full speed.
func (b *bench) during(long bool) time.Duration {
	if long {
		return 4 * b.o.during
	}
	return b.o.during
}

// all measures every case, in the order of the cases, except that cases of one setup run together.
func (b *bench) all(ctx context.Context, cases []benchCase) error {
	b.began = time.Now()
	for i, c := range cases {
		began := time.Now()
		rows := newRows(c, b.setupOf(c))
		err := b.one(ctx, c, rows)
		if ctx.Err() != nil {
			b.report.Rows = append(b.report.Rows, rows...)
			return errors.Join(errInterrupted, b.endLab())
		}
		switch {
		case errors.Is(err, errNoTimeLeft):
			b.report.note("%s: %v", c.name, err)
		case errors.Is(err, tools.ErrNotInstalled):
			b.report.note("%s: left out: %v", c.name, err)
		case err != nil:
			b.missed = append(b.missed, fmt.Errorf("%s: %w", c.name, err))
			b.closeAfter() // the remaining lab is not to be trusted
		}
		for k := range rows {
			if err != nil {
				rows[k].Why = err.Error()
			}
		}
		b.report.Rows = append(b.report.Rows, rows...)
		b.progress("%d of %d: %s, %.1f s", i+1, len(cases), c.name, time.Since(began).Seconds())
	}
	return errors.Join(append(b.missed, b.endLab())...)
}

var errInterrupted = errors.New("interrupted; what had been measured is in the report")

// setupOf returns the case's setup, on the network that the command line specifies.
func (b *bench) setupOf(c benchCase) setup {
	s := c.setup
	if b.o.way != "" && !s.none {
		s.way = b.o.way
	}
	return s
}

// one measures one case as often as the options specify. A baseline that this machine does not have
// is left out, with a note.
func (b *bench) one(ctx context.Context, c benchCase, rows []Row) error {
	if b.o.quick && time.Since(b.began) > quickRun {
		return errNoTimeLeft
	}
	if err := b.use(ctx, b.setupOf(c)); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, quickCase)
	defer cancel()
	sources := slices.Clone(c.sources)
	runs := b.o.runs
	if c.once {
		runs = 1
	}
	for run := range runs {
		for i := range len(sources) {
			source := sources[(i+run)%len(sources)] // each run begins with another source
			if source == "" {
				continue
			}
			all, err := c.measure(ctx, b, source)
			_, foreign := errors.AsType[foreignError](err)
			if (foreign || errors.Is(err, tools.ErrNotInstalled)) && source != c.sources[0] {
				b.report.note("%s: no %s: %v", c.name, source, err)
				sources[slices.Index(sources, source)] = ""
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", source, err)
			}
			for k := range rows {
				rows[k].add(source, all[k])
			}
		}
	}
	return nil
}

// use ensures that the lab of a setup runs.
func (b *bench) use(ctx context.Context, s setup) error {
	if s.none || b.lab != nil && b.setup == s {
		return nil
	}
	if err := b.endLab(); err != nil {
		return err
	}
	lab, err := newLab(ctx, b.o, s)
	b.lab, b.setup = lab, s
	return err
}

// closeAfter ends the lab after a failure, which is reported elsewhere.
func (b *bench) closeAfter() {
	if err := b.endLab(); err != nil {
		b.missed = append(b.missed, err)
	}
}

// endLab ends the lab, if there is one.
func (b *bench) endLab() error {
	if b.lab == nil {
		return nil
	}
	err := b.lab.close()
	b.lab, b.apps = nil, nil
	return err
}

// orderCase is a case of two application processes that carry out one order over each carrier. With
// allocs it has a second row: the allocations per operation, at both ends together.
func orderCase(name string, s setup, carriers []string, w work, row rowSpec, allocs bool) benchCase {
	row.cpuUnit = cpuPerOp
	if row.unit == megabytes {
		row.cpuUnit = cpuPerGB
	}
	c := benchCase{name: name, setup: s, sources: carriers, rows: []rowSpec{row}}
	if allocs {
		c.rows = append(c.rows, rowSpec{what: row.what + ": allocations", unit: perOp, target: to(allocsTolerance)})
		if row.baseline == carryQUIC { // quic-go itself allocates
			c.rows[1].target = nil
		}
	}
	c.measure = func(ctx context.Context, b *bench, carrier string) ([]reading, error) {
		next := w.order(carrier, c.sources[0], b.during(w.long))
		m, err := b.lab.measure(ctx, carrier, next)
		if err != nil {
			return nil, fmt.Errorf("%w\n%s", errors.Join(err, ctx.Err()), b.lab.tails(5))
		}
		readings := []reading{{m.figure(next.Kind), m.cpuEach(row.cpuUnit)}}
		if allocs {
			readings = append(readings, reading{figure(m.Mallocs) / figure(max(m.Ops, 1)), absent})
		}
		return readings, nil
	}
	return c
}

// A work is the operation of two applications.
type work struct {
	kind byte
	size int64
	as   byte // the kind for baselines, if only a fabric supports kind
	long bool
}

// order returns the order for a carrier; ours is the carrier that supports every kind.
func (w work) order(carrier, ours string, during time.Duration) order {
	kind := w.kind
	if carrier != ours && w.as != 0 {
		kind = w.as
	}
	warmup := during / 5
	if w.long {
		warmup = during / 2
	}
	return order{Kind: kind, Size: w.size, Warmup: warmup, During: during}
}
