package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

// falseTest is how often a node sees one go that is well.
const falseTest = "false_positive_rate"

// hogCommand is the command of a process that does nothing but use a processor.
const hogCommand = "hog"

// hogLimit bounds the life of such a process, should nobody end it.
const hogLimit = 2 * time.Hour

// calmByDefault is how long a repetition takes.
const calmByDefault = 20 * time.Second

// hogsByDefault is how many processes keep the machine busy.
func hogsByDefault() int { return 4 * runtime.NumCPU() }

// A Calm is a while in which nothing was done to any node.
type Calm struct {
	Provider string `json:"provider"`
	Nodes    int    `json:"nodes"`
	Hogs     int    `json:"hogs"` // processes that used a processor each
	Seconds  figure `json:"seconds"`
	// False is how often any node saw another one go meanwhile, and how often for
	// each node-hour.
	False int    `json:"false_removals"`
	Rate  figure `json:"false_removals_per_node_hour"`
}

// A falseOptions is what the flags of false_positive_rate say.
type falseOptions struct {
	clusterOptions
	reps   int
	hogs   int
	during time.Duration
}

func (a *app) falseCommand() *cobra.Command {
	o := &falseOptions{}
	cmd := &cobra.Command{
		Use: falseTest, Short: "Leave daemons alone on a machine that is too busy, and count who is taken for lost", Args: cobra.NoArgs,
		Long: `false_positive_rate starts fabricd processes on loopback and, beside them, processes
that use every processor several times over. Nothing is done to any daemon: each
NODE_REMOVED at any of them is a false one. The figure is how many a node sees in
an hour.`,
		Example: `  fabric-bench run false_positive_rate
  fabric-bench run false_positive_rate --hogs 0 --duration 5m
  fabric-bench run false_positive_rate --providers tcp
  fabric-bench run false_positive_rate --detection fast --reps 5 --format json`,
	}
	o.flags(cmd, 8)
	cmd.Flags().IntVar(&o.reps, "reps", 3, "repetitions")
	cmd.Flags().IntVar(&o.hogs, "hogs", hogsByDefault(), "processes that use a processor each")
	cmd.Flags().DurationVar(&o.during, "duration", calmByDefault, "how long each repetition takes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error {
			_, err := a.measureFalse(cmd.Context(), d, o)
			return err
		})
	}
	return cmd
}

func (o *falseOptions) check() error {
	switch {
	case o.reps < 1 || o.reps > 1000:
		return usagef("--reps %d: 1 to 1000", o.reps)
	case o.hogs < 0 || o.hogs > 1024:
		return usagef("--hogs %d: 0 to 1024", o.hogs)
	case o.during < 100*time.Millisecond || o.during > time.Hour:
		return usagef("--duration %v: 100ms to 1h", o.during)
	}
	return o.clusterOptions.check(2)
}

// measureFalse adds the rows of false_positive_rate, and returns the calms.
func (a *app) measureFalse(ctx context.Context, d *Document, o *falseOptions) (ours []Calm, err error) {
	progress := a.progress(o.quiet)
	c, err := o.onCluster(ctx, falseTest, func(g *trial) error {
		for rep := range o.reps {
			calm, err := g.leaveAlone(ctx, o)
			if err != nil {
				return fmt.Errorf("repetition %d of %d: %w", rep+1, o.reps, err)
			}
			ours = append(ours, calm)
			progress("%s: %d of %d", falseTest, rep+1, o.reps)
		}
		return nil
	})
	for i := range ours {
		ours[i].Provider = c.String()
	}
	d.Calms = append(d.Calms, ours...)
	d.addCalms(rowOf(d), o, c, ours)
	return ours, err
}

// leaveAlone watches the daemons for a while beside hogs, and then until everybody
// sees all again.
func (g *trial) leaveAlone(ctx context.Context, o *falseOptions) (calm Calm, err error) {
	began := time.Now()
	hogs, err := startHogs(o.hogs)
	if err != nil {
		return calm, err
	}
	over := wait(ctx, o.during)
	took := time.Since(began)
	hogs.end()
	if !over {
		return calm, context.Cause(ctx)
	}
	calm = calmOf("", len(g.posts), o.hogs, took, g.removals())
	for _, p := range g.posts {
		if err := sees(ctx, p.node, len(g.posts)); err != nil {
			return calm, fmt.Errorf("afterwards: %w", err)
		}
	}
	g.removals() // of those that are seen late
	return calm, nil
}

func calmOf(provider string, nodes, hogs int, took time.Duration, seen int) Calm {
	return Calm{Provider: provider, Nodes: nodes, Hogs: hogs, Seconds: figure(took.Seconds()), False: seen,
		Rate: figure(float64(seen) / (float64(nodes) * took.Hours()))}
}

// removals takes the events that the observers have had, and returns how many of
// them were NODE_REMOVED.
func (g *trial) removals() (n int) {
	for _, p := range g.posts {
		for {
			select {
			case ev := <-p.events:
				if ev.Kind == fabric.NodeRemoved {
					n++
				}
				continue
			default:
			}
			break
		}
	}
	return n
}

// addCalms adds a row, a repetition for each calm, and the target.
func (d *Document) addCalms(row Row, o *falseOptions, c carrier, ours []Calm) {
	row.Test, row.Dir = falseTest, fmt.Sprintf("%d nodes, %d hogs on %d processors, detection %s", o.nodes, o.hogs, runtime.NumCPU(), o.detection)
	row.carriedBy(c)
	d.addCalm(row, ours)
	if len(ours) > 0 {
		sum := 0
		for _, c := range ours {
			sum += c.False
		}
		d.Checks = append(d.Checks, atMost("removals of nodes that are well", figure(sum), "removals", 0))
	}
}

func (d *Document) addCalm(row Row, all []Calm) {
	if len(all) == 0 {
		return
	}
	var rates []figure
	for _, c := range all {
		rates = append(rates, c.Rate)
		row.Iters += int64(c.False)
	}
	s := spreadOf(rates)
	row.FalseRate, row.Reps, row.CV = s.Median, int64(len(all)), variation(rates)
	d.Results = append(d.Results, Result{Row: row, Figure: falseFigure, Min: s.Min, Median: s.Median, Max: s.Max, PerRep: rates})
}

// hogs are processes that use a processor each; they die with the thread that
// started them.
type hogs []*exec.Cmd

func startHogs(n int) (all hogs, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for range n {
		cmd := exec.Command(self, hogCommand)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			all.end()
			return nil, err
		}
		all = append(all, cmd)
	}
	return all, nil
}

// end kills them all, and waits for their end.
func (h hogs) end() {
	for _, cmd := range h {
		// It fails only for a process that has ended, and how is of no interest.
		_ = cmd.Process.Kill()
	}
	for _, cmd := range h {
		_ = cmd.Wait()
	}
}

// hogProcess is the command of a hog.
func (a *app) hogProcess() *cobra.Command {
	return &cobra.Command{
		Use: hogCommand, Hidden: true, Args: cobra.NoArgs, Short: "Use a processor: fabric-bench starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), hogLimit)
			defer cancel()
			for n := uint32(1); n != 0 || ctx.Err() == nil; n++ { // to ask costs more than to count
			}
			return errors.New("nobody has ended it")
		},
	}
}
