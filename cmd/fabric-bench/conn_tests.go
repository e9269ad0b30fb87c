package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// defaultConns is up to how many connections conn_scale opens without --conns.
const defaultConns = 1000

// dialLimit bounds one connect of conn_scale.
const dialLimit = 15 * time.Second

// A growth is a test that has more and more of something at once on one link.
type growth struct {
	test, dir, what string
	most            int64
	// open has count of them at once, and returns what opening took and the memory
	// of each.
	open func(ctx context.Context, s side, count int64) (sample, figure, error)
	// put says in a result how many there were, and what each cost.
	put func(r *Result, count int64, each figure)
}

// scaleConnections opens more and more connections on one link.
func scaleConnections(ctx context.Context, b *bench, _ []int64) ([]Result, error) {
	return b.grow(ctx, growth{"conn_scale", "connect", "connections", b.conns, openMany,
		func(r *Result, count int64, each figure) { r.Conns, r.ConnBytes = count, each }})
}

// mostWindows is up to how many windows window_scale has on one connection.
const mostWindows = 1000

// scaleWindows registers more and more windows on one connection.
func scaleWindows(ctx context.Context, b *bench, _ []int64) ([]Result, error) {
	if isAnchor(b.ours) {
		return nil, errNoWindows
	}
	return b.grow(ctx, growth{"window_scale", "register", "windows", min(b.conns, mostWindows), openWindows,
		func(r *Result, count int64, each figure) { r.Window, r.WindowBytes = count, each }})
}

// grow measures ten times as many from one measurement to the next.
func (b *bench) grow(ctx context.Context, g growth) (all []Result, err error) {
	for count := int64(1); ; count = min(count*10, g.most) {
		reps := b.reps
		if count > defaultConns {
			reps = 1
		}
		r, err := b.scale(ctx, g, count, reps)
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		if err != nil {
			provider, _ := b.ours.about()
			b.notes = append(b.notes, fmt.Sprintf("%s over %s ends before %d %s: %v", g.test, provider, count, g.what, err))
			return all, nil
		}
		if all = append(all, r); count == g.most {
			return all, nil
		}
	}
}

// scale opens count of them, reps times.
func (b *bench) scale(ctx context.Context, g growth, count int64, reps int) (Result, error) {
	var samples []sample
	var memory []figure
	for rep := range reps {
		s, bytes, err := g.open(ctx, b.ours, count)
		if err != nil {
			return Result{}, err
		}
		samples, memory = append(samples, s), append(memory, bytes)
		b.progress("%s, %d %s: repetition %d of %d", g.test, count, g.what, rep+1, reps)
	}
	row := b.row
	row.Test, row.Dir = g.test, g.dir
	row.Provider, row.Security = b.ours.about()
	// The latency of one is in the row beside the rate.
	all := newHistogram()
	for _, s := range samples {
		all.Merge(s.lat)
	}
	res := rate.reduce(row, samples)
	res.BWAvg, res.BWPeak, res.BWMiB = absent, absent, absent
	res.setLatency(percentiles(all, 1))
	g.put(&res, count, median(memory))
	res.hist = all
	return res, nil
}

// openWindows registers one page count times on one connection, and returns what
// that took, and the memory of both ends of one window without the page.
func openWindows(ctx context.Context, s side, count int64) (_ sample, perWindow figure, err error) {
	ch, err := dialWithin(ctx, s)
	if err != nil {
		return sample{}, absent, err
	}
	defer func() { err = first(err, ch.close()) }()
	mem, err := ch.node.Alloc(fabric.PageSize)
	if err != nil {
		return sample{}, absent, err
	}
	defer func() { err = first(err, mem.Close()) }()
	before, err := footprint(s.processes())
	if err != nil {
		return sample{}, absent, err
	}
	out := sample{lat: newHistogram(), ops: count}
	began := time.Now()
	for i := range count {
		start := time.Now()
		if _, err := ch.ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0); err != nil {
			return out, absent, fmt.Errorf("with %d windows: %w", i, err)
		}
		record(out.lat, time.Since(start))
	}
	out.elapsed = time.Since(began)
	after, err := footprint(s.processes())
	return out, figure(max(after-before, 0)) / figure(count), err
}

// openMany opens connections one after the other, keeps all of them open, and
// sends a message there and back on each. It returns what opening took, and the
// memory of both ends of one, with the goroutine that reads there.
func openMany(ctx context.Context, s side, count int64) (_ sample, perConn figure, err error) {
	chans := make([]*channel, 0, count)
	defer func() {
		for _, ch := range chans {
			err = first(err, ch.close())
		}
	}()
	before, err := footprint(s.processes())
	if err != nil {
		return sample{}, absent, err
	}
	out := sample{lat: newHistogram(), ops: count}
	began := time.Now()
	for range count {
		start := time.Now()
		ch, err := dialWithin(ctx, s)
		if err != nil {
			return out, absent, fmt.Errorf("with %d open: %w", len(chans), err)
		}
		record(out.lat, time.Since(start))
		chans = append(chans, ch)
	}
	out.elapsed = time.Since(began)
	for i, ch := range chans {
		if err := converse(ch); err != nil {
			return out, absent, fmt.Errorf("with %d open, a message on number %d: %w", len(chans), i+1, err)
		}
	}
	after, err := footprint(s.processes())
	return out, figure(max(after-before, 0)) / figure(count), err
}

// converse sends 8 bytes there and back.
func converse(ch *channel) error {
	l := newMessages(ch, job{size: 8, seed: 1, check: true}, opEcho)
	if err := l.begin(1); err != nil {
		return err
	}
	if err := l.op(0); err != nil {
		return err
	}
	if wrong, err := l.check(0); wrong > 0 || err != nil {
		return first(err, errWrongBytes)
	}
	return nil
}

// dialWithin opens a connection within dialLimit.
func dialWithin(ctx context.Context, s side) (*channel, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	ch, err := s.dial(ctx, 0)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no connect in %v: %w", dialLimit, err)
	}
	return ch, err
}

// footprint returns the bytes that are in use: what this process's heap and
// stacks hold after a collection, and what the others have resident.
func footprint(others []int) (int64, error) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	sum := int64(m.HeapAlloc + m.StackInuse)
	for _, pid := range others {
		n, err := residentBytes(pid)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
