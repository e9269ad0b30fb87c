package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// A runOptions is the values of the flags of `run`.
type runOptions struct {
	only     []string
	fabricd  string
	way      string
	loopback bool
	json     bool
	quick    bool
	quiet    bool
	store    string
	runs     int
	during   time.Duration
}

func (a *app) runCommand() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use: "run", Short: "Measure what is deployed: an application and a fabricd on each of two machines", Args: cobra.NoArgs,
		Long: `run starts two fabricds in two network namespaces (on loopback without root), an
application process beside each, and measures messages, connects and remote memory
between the two. In the same run and in turns it measures bare programs over TCP,
crypto/tls and quic-go on the same way, TCP through stunnel, and on one node UCX and
libfabric, as far as they are installed. Unmodified applications go through "fabricd
expose" and "fabricd forward", beside stunnel and nothing. Beside each figure is the
processor time of all processes that took part. Failure detection, false removals and
idle daemons have clusters of eight. With --way a relay between two TUN devices is between
the machines: it delays each packet by half of the round trip, sends so many bits a
second, and drops what a queue of one round trip does not hold.`,
		Example: `  fabric-bench run
  fabric-bench run --quick                         everything, in about a minute
  fabric-bench run --only message,rma              the cases whose names begin so
  fabric-bench run --only message-1M --way 25ms/1Gbit
  fabric-bench run --only apps --runs 3 --json
  fabric-bench run --store before.json             and then: fabric-bench compare before.json after.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.only, "only", nil, "measure these `cases`, or those whose names begin so; fabric-bench list has them")
	f.StringVar(&o.fabricd, "fabricd", "", "the `file` of the program to run (default: beside this one, in ./bin or on $PATH)")
	f.StringVar(&o.way, "way", "", "instead of a veth pair between the machines: the time there and back and the rate, as 25ms/1Gbit; needs root")
	f.BoolVar(&o.loopback, "loopback", !canMakeSpaces(), "both machines on loopback, as without root")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.quick, "quick", false, "about a minute: one run of short measurements and small clusters; whether all works, not how fast; what the minute is too short for is named")
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
	f.StringVar(&o.store, "store", "", "also write the report, as JSON, to this `file`")
	f.IntVar(&o.runs, "runs", 5, "measurements of each case and source, 1 to 100")
	f.DurationVar(&o.during, "duration", 500*time.Millisecond, "of each measurement, 10ms to 1m")
	return cmd
}

func (o *runOptions) check() error {
	switch {
	case o.runs < 1 || o.runs > 100:
		return usagef("--runs %d: 1 to 100", o.runs)
	case o.during < 10*time.Millisecond || o.during > time.Minute:
		return usagef("--duration %v: 10ms to 1m", o.during)
	case !o.loopback && !canMakeSpaces():
		return usagef("--loopback=false: network namespaces need root and `ip`")
	case o.way != "" && o.loopback:
		return usagef("--way: needs network namespaces, which need root and `ip`")
	}
	if o.way != "" {
		if _, err := parseWay(o.way); err != nil {
			return usageError{err}
		}
	}
	if o.quick {
		o.runs, o.during = 1, 100*time.Millisecond
	}
	return nil
}

// run measures, and prints and stores the report, also after a failure.
func (a *app) run(ctx context.Context, o *runOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	cases, err := choose(allCases(), o.only)
	if err != nil {
		return err
	}
	if _, err := findFabricd(o.fabricd); err != nil {
		return err
	}
	if err := o.prepareStore(); err != nil {
		return err
	}
	runtime.LockOSThread() // children die with this thread
	defer runtime.UnlockOSThread()
	b := &bench{o: o, report: a.newReport(o), progress: func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "fabric-bench: "+format+"\n", args...)
	}}
	if o.quiet {
		b.progress = func(string, ...any) {}
	}
	err = b.all(ctx, b.possible(cases))
	return errors.Join(err, b.report.put(o, a.stdout))
}

// possible leaves out cases that need namespaces if there are none.
func (b *bench) possible(cases []benchCase) (all []benchCase) {
	for _, c := range cases {
		if b.o.loopback && c.setup.way != "" {
			b.report.note("%s: left out: a way needs network namespaces", c.name)
			continue
		}
		all = append(all, c)
	}
	return all
}

func (a *app) newReport(o *runOptions) *Report {
	d := &Report{Schema: reportSchema, Started: time.Now().UTC().Format(time.RFC3339), Command: append([]string{"fabric-bench"}, a.args...),
		Machine: describeMachine(), Revision: revision(), Way: "two network namespaces, veth", Runs: o.runs, During: o.during.String(), Quick: o.quick}
	switch {
	case o.loopback:
		d.Way = "loopback"
	case o.way != "":
		d.Way = "two network namespaces, " + o.way
	}
	if o.quick {
		d.note("--quick: one short run, clusters of %d, one loss of a node, at most %d connections", quickCluster, quickConns)
	}
	return d
}

// prepareStore fails early if the report could not be stored.
func (o *runOptions) prepareStore() error {
	if o.store == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.store), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(o.store, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// put stores and prints the report.
func (d *Report) put(o *runOptions, stdout io.Writer) error {
	if o.store != "" {
		f, err := os.Create(o.store)
		if err != nil {
			return err
		}
		if err := errors.Join(writeJSON(f, d), f.Close()); err != nil {
			return err
		}
	}
	if o.json {
		return writeJSON(stdout, d)
	}
	return d.write(stdout)
}

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the cases", Args: cobra.NoArgs, Example: "  fabric-bench list",
		RunE: func(*cobra.Command, []string) error {
			var b strings.Builder
			for _, c := range allCases() {
				b.WriteString(c.describe() + "\n")
			}
			_, err := io.WriteString(a.stdout, b.String())
			return err
		},
	}
}
