package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// usesOfEach is the number of messages there and back on each connection that stays open, so that
// it has the resources of a connection in use.
const usesOfEach = 8

// talkers is the number of goroutines that use the connections.
const talkers = 8

// mostConns bounds the connections that an end keeps open.
const mostConns = 50_000

// manyAtOnce carries out an order about connections that stay open.
func (e *end) manyAtOnce(ctx context.Context, o order) (outcome, error) {
	switch o.Kind {
	case kindOpen:
		return e.openMany(ctx, o)
	case kindHold:
		began := time.Now()
		wait(ctx, o.During)
		return outcome{Ops: 1, Elapsed: time.Since(began)}, ctx.Err()
	case kindTalk:
		return e.talk(o)
	case kindShut:
		n := len(e.pool)
		var errs []error
		for _, c := range e.pool {
			errs = append(errs, c.Close())
		}
		e.pool = nil
		return outcome{Ops: int64(n), Elapsed: 1}, errors.Join(errs...)
	}
	return outcome{}, fmt.Errorf("order %d is unknown", o.Kind)
}

// openMany opens connections one by one: it times the connect and a message there and back.
// Afterwards it uses each.
func (e *end) openMany(ctx context.Context, o order) (outcome, error) {
	if o.Count < 1 || o.Count > mostConns || o.Size < 1 || o.Size > maxOrder {
		return outcome{}, fmt.Errorf("%d connections of %d bytes", o.Count, o.Size)
	}
	buf := make([]byte, o.Size)
	began := time.Now()
	for range o.Count {
		c, err := e.dial(ctx)
		if err != nil {
			return outcome{}, fmt.Errorf("connection %d: %w", len(e.pool)+1, err)
		}
		e.pool = append(e.pool, c)
		if _, err := c.Write(request(kindEcho, o.Size)); err != nil {
			return outcome{}, err
		}
		if err := trip(c, buf); err != nil {
			return outcome{}, err
		}
	}
	result := outcome{Ops: int64(o.Count), Elapsed: time.Since(began)}
	for range usesOfEach {
		for _, c := range e.pool {
			if err := trip(c, buf); err != nil {
				return result, err
			}
		}
	}
	return result, nil
}

// talk sends a message there and back on each connection in turn.
func (e *end) talk(o order) (outcome, error) {
	var ops atomic.Int64
	errs := make([]error, talkers)
	began := time.Now()
	var all sync.WaitGroup
	for k := range talkers {
		all.Go(func() {
			buf := make([]byte, o.Size)
			for i := k; k < len(e.pool) && time.Since(began) < o.During; i += talkers {
				if i >= len(e.pool) {
					i = k // no other goroutine uses these connections
				}
				if errs[k] = trip(e.pool[i], buf); errs[k] != nil {
					return
				}
				ops.Add(1)
			}
		})
	}
	all.Wait()
	return outcome{Ops: ops.Load(), Elapsed: time.Since(began)}, errors.Join(errs...)
}

// quickConns is the most connections that --quick opens.
const quickConns = 200

// connCases open many connections between two applications.
func connCases() (all []benchCase) {
	for _, n := range []int{1000, 5000} {
		what := fmt.Sprintf("%d connections: ", n)
		row := func(text, unit, cpuUnit string, target *figure) rowSpec {
			return rowSpec{what: what + text, unit: unit, cpuUnit: cpuUnit, target: target}
		}
		var memory, idle *figure
		if n == 1000 {
			memory, idle = to(48), to(1)
		}
		all = append(all, benchCase{
			name: fmt.Sprintf("conns-%d", n), setup: setup{paths: onPaths.paths, conns: n}, sources: []string{carryFabric, carryTLS, carryTCP}, once: true,
			rows: []rowSpec{
				row("connect, and a message there and back (processor time: and 8 more)", micros, cpuPerOp, nil),
				row("memory of the larger fabricd, each", kibibytes, "", memory),
				row("memory of both applications, each", kibibytes, "", nil),
				row("descriptors of the fabricd with more, each", "descriptors", "", nil),
				row("descriptors of the client, each", "descriptors", "", nil),
				row("idle, the busier fabricd", "% of a core", "", idle),
				row("idle, both applications", "% of a core", "", nil),
				row("active, messages 64 B there and back", perSecond, cpuPerOp, nil),
			},
			measure: func(ctx context.Context, b *bench, source string) ([]reading, error) {
				return b.manyConns(ctx, source, n)
			},
		})
	}
	return all
}

// manyConns opens n connections, leaves them alone, talks on them and closes them.
func (b *bench) manyConns(ctx context.Context, source string, n int) ([]reading, error) {
	during := max(4*b.o.during, 100*time.Millisecond)
	if b.o.quick {
		n, during = min(n/10, quickConns), 2*b.o.during
	}
	c, err := b.lab.carrierOf(ctx, source)
	if err != nil {
		return nil, err
	}
	before, err := usageOf(c)
	if err != nil {
		return nil, err
	}
	do := func(o order) (measured, error) { return b.lab.measure(ctx, source, o) }
	opened, err := do(order{Kind: kindOpen, Size: 64, Count: n, During: time.Minute})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, b.lab.tails(5))
	}
	wait(ctx, during/2) // until the after-effects of opening are over
	held, err := usageOf(c)
	if err != nil {
		return nil, err
	}
	if _, err := do(order{Kind: kindHold, During: during}); err != nil {
		return nil, err
	}
	rested, err := usageOf(c)
	if err != nil {
		return nil, err
	}
	talked, err := do(order{Kind: kindTalk, Size: 64, During: during})
	if err != nil {
		return nil, err
	}
	if _, err := do(order{Kind: kindShut, During: during}); err != nil {
		return nil, err
	}
	each := func(f figure) reading { return reading{f / figure(n), absent} }
	busy := func(d time.Duration) reading { return reading{figure(100 * d.Seconds() / during.Seconds()), absent} }
	daemon := func(r reading) reading {
		if len(c.helpers) == 0 {
			r.value = absent
		}
		return r
	}
	return []reading{
		{opened.figure(kindConnect), opened.cpuEach(cpuPerOp)},
		daemon(each(held.daemonKiB - before.daemonKiB)),
		each(held.appKiB - before.appKiB),
		daemon(each(held.daemonFiles - before.daemonFiles)),
		each(held.clientFiles - before.clientFiles),
		daemon(busy(rested.daemonCPU - held.daemonCPU)),
		busy(rested.appCPU - held.appCPU),
		{talked.figure(kindRate), talked.cpuEach(cpuPerOp)},
	}, nil
}

// A usage is the resources that a carrier's processes use: of fabricds the largest use.
type usage struct {
	daemonKiB, daemonFiles figure
	appKiB, clientFiles    figure
	daemonCPU, appCPU      time.Duration
}

func usageOf(c *carrier) (u usage, err error) {
	for _, p := range c.processes() {
		rss, err1 := residentBytes(p.pid())
		files, err2 := openFiles(p.pid())
		spent, err3 := cpuTime(p.pid())
		if err := errors.Join(err1, err2, err3); err != nil {
			return u, fmt.Errorf("%s: %w", p.name, err)
		}
		kib := figure(rss) / 1024
		switch p {
		case c.client, c.server:
			u.appKiB += kib
			u.appCPU += spent
			if p == c.client {
				u.clientFiles = figure(files)
			}
		default:
			u.daemonKiB, u.daemonFiles = max(u.daemonKiB, kib), max(u.daemonFiles, figure(files))
			u.daemonCPU = max(u.daemonCPU, spent)
		}
	}
	return u, nil
}
