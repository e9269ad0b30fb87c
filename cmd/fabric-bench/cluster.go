package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

const fabricdAlone = "fabricd"

// clusterCases are clusters of daemons on loopback, with bounds and without a baseline.
func clusterCases() []benchCase {
	alone := func(name string, measure func(ctx context.Context, b *bench, exe string) ([]reading, error), rows ...rowSpec) benchCase {
		return benchCase{name: name, setup: setup{none: true}, sources: []string{fabricdAlone}, once: true, rows: rows,
			measure: func(ctx context.Context, b *bench, _ string) ([]reading, error) {
				exe, err := findFabricd(b.o.fabricd)
				if err != nil {
					return nil, err
				}
				return measure(ctx, b, exe)
			}}
	}
	row := func(what, unit string, target *figure) rowSpec {
		return rowSpec{what: "8 nodes: " + what, unit: unit, target: target}
	}
	return []benchCase{
		alone("loss-kill", lossBy(kill, 50), row("kill -9 to NODE_REMOVED, p99", millis, to(50)), row("kill -9 to NODE_REMOVED, max", millis, nil),
			row("kill -9 until a blocked receive has its error, max", millis, nil)),
		alone("loss-stop-fast", lossBy(stopFast, 14), row("SIGSTOP to NODE_REMOVED, fast, p99", millis, nil), row("SIGSTOP to NODE_REMOVED, fast, max", millis, to(2000)),
			row("SIGSTOP until a blocked receive has its error, fast, max", millis, nil)),
		alone("loss-stop-normal", lossBy(stopNormal, 14), row("SIGSTOP to NODE_REMOVED, normal, p99", millis, nil), row("SIGSTOP to NODE_REMOVED, normal, max", millis, to(3000)),
			row("SIGSTOP until a blocked receive has its error, normal, max", millis, nil)),
		alone("false-removals", falseRemovals, row(fmt.Sprintf("removals of nodes that are well, beside %d busy processes", hogCount()), "removals", to(0))),
		alone("idle", idle, row("idle, the busiest daemon", "% of a core", to(0.5)), row("idle, the largest daemon", "MB", to(40))),
	}
}

// quickCluster is the number of daemons in a cluster of --quick.
const quickCluster = 4

// clusterSize is the number of daemons in a cluster.
func (b *bench) clusterSize() int {
	if b.o.quick {
		return quickCluster
	}
	return 8
}

// lossBy measures the time to detect losses.
func lossBy(s failure, count int) func(context.Context, *bench, string) ([]reading, error) {
	return func(ctx context.Context, b *bench, exe string) ([]reading, error) {
		if b.o.quick {
			count = 1
		}
		losses, err := loseEach(ctx, exe, b.clusterSize(), count, s)
		var removed, returned []figure
		for _, l := range losses {
			removed, returned = append(removed, l.removed...), append(returned, l.returned...)
		}
		return []reading{{quantile(removed, .99), absent}, {quantile(removed, 1), absent}, {quantile(returned, 1), absent}}, err
	}
}

// idle measures the busiest and the largest of idle daemons: the medians of several windows of
// time.
func idle(ctx context.Context, b *bench, exe string) (_ []reading, err error) {
	windows, during, settling := 5, 10*time.Second, 3*time.Second
	if b.o.quick {
		windows, during, settling = 1, time.Second, time.Second
	}
	f, err := newFleet(ctx, exe, b.clusterSize(), "--detection", "normal")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	wait(ctx, settling)
	var cpus, sizes []figure
	for range windows {
		cpu, mb, err := f.watch(ctx, during)
		if err != nil {
			return nil, err
		}
		cpus, sizes = append(cpus, cpu), append(sizes, mb)
	}
	return []reading{{median(cpus), absent}, {median(sizes), absent}}, nil
}

// watch leaves the daemons idle for a while and returns the busiest one's use of a core, in
// percent, and the largest one's memory, in MB.
func (f *fleet) watch(ctx context.Context, during time.Duration) (cpu, mb figure, err error) {
	before := make([]time.Duration, len(f.daemons))
	began := time.Now()
	for i, d := range f.daemons {
		if before[i], err = cpuTime(d.pid()); err != nil {
			return absent, absent, err
		}
	}
	if !wait(ctx, during) {
		return absent, absent, ctx.Err()
	}
	for i, d := range f.daemons {
		used, err1 := cpuTime(d.pid())
		rss, err2 := residentBytes(d.pid())
		if err := errors.Join(err1, err2); err != nil {
			return absent, absent, fmt.Errorf("%s: %w", d.name, err)
		}
		cpu = max(cpu, figure(100*(used-before[i]).Seconds()/time.Since(began).Seconds()))
		mb = max(mb, figure(float64(rss)/1e6))
	}
	return cpu, mb, nil
}

// falseRemovals counts the NODE_REMOVED of undisturbed daemons on an overloaded machine: every one
// is false.
func falseRemovals(ctx context.Context, b *bench, exe string) ([]reading, error) {
	during := time.Minute
	if b.o.quick {
		during = time.Second
	}
	seen := 0
	err := withObservers(ctx, exe, b.clusterSize(), "normal", func(g *observedFleet) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		var hogs []*process // which end with the fleet if one cannot be started
		for i := range hogCount() {
			hog, err := g.fleet.spawn(fmt.Sprintf("hog-%d", i), self, hogCommand)
			if err != nil {
				return err
			}
			hogs = append(hogs, hog)
		}
		wait(ctx, during)
		for _, hog := range hogs {
			hog.end()
		}
		seen = g.removals()
		for _, p := range g.observers {
			if err := sees(ctx, p.node, len(g.observers)); err != nil {
				return fmt.Errorf("afterwards: %w", err)
			}
		}
		return ctx.Err()
	})
	return []reading{{figure(seen), absent}}, err
}

// removals takes the events that the observers have received, and returns the number of
// NODE_REMOVED.
func (g *observedFleet) removals() (n int) {
	for _, p := range g.observers {
		for range len(p.events) {
			if ev := <-p.events; ev.Kind == fabric.NodeRemoved {
				n++
			}
		}
	}
	return n
}

// hogCommand is the command of a process that only uses a processor.
const hogCommand = "hog"

// hogLimit bounds the incarnation of such a process, should it be left running.
const hogLimit = 10 * time.Minute

// hogCount is the number of processes that keep the machine busy.
func hogCount() int { return 4 * runtime.NumCPU() }

// hogProcess is the command of a hog.
func (a *app) hogProcess() *cobra.Command {
	return &cobra.Command{
		Use: hogCommand, Hidden: true, Args: cobra.NoArgs, Short: "Use a processor: fabric-bench run starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), hogLimit)
			defer cancel()
			for n := uint32(1); n != 0 || ctx.Err() == nil; n++ { // checking costs more than counting
			}
			return errors.New("it was not asked to end")
		},
	}
}
