package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// suiteOptions is what the flags of suite say.
type suiteOptions struct {
	anchorOptions
	out       string
	providers []string
	conns     int64
	quick     bool
	rows      []string
	tests     []string

	cliffFails bool
}

// suiteProviders are what a suite measures without --providers.
var suiteProviders = []string{providerAttach, providerAttachLow, providerTCP, providerTCPPlain, providerQUIC}

// sweepTests are those whose sizes a suite sweeps, for cliffs and pictures.
var sweepTests = []string{"msg_lat", "msg_bw", "rma_write_lat", "rma_read_lat", "rma_write_bw", "rma_read_bw"}

// A pace says how long a suite measures.
type pace struct {
	sweepReps  int
	sweep      time.Duration // of a repetition
	sweepSizes []int64
	reps       int
	rep        time.Duration
	sizes      []int64
}

func (o *suiteOptions) pace() pace {
	if o.quick {
		return pace{1, 5 * time.Millisecond, []int64{8, 64, 1 << 10, 4 << 10, 8191, 8192, 8193, 64 << 10, 1 << 20}, 2, 10 * time.Millisecond, []int64{64, 64 << 10}}
	}
	return pace{3, 40 * time.Millisecond, sweepSizes(), o.reps, 100 * time.Millisecond, []int64{64, 4 << 10, 64 << 10, 1 << 20}}
}

func (a *app) suiteCommand() *cobra.Command {
	o := &suiteOptions{}
	cmd := &cobra.Command{
		Use: "suite", Short: "Measure everything, and write a report", Args: cobra.NoArgs,
		Long: `suite measures every provider with all tests and a sweep of sizes, the design's
targets beside their anchors, what a loss costs: how soon it is seen, how soon
connections work again, and what the other pairs feel; how soon a new node is in,
and how often one is taken for lost that is well. It writes report.html,
which needs nothing else, report.md, results.json, results.csv and the pictures as
SVG, and prints the table of targets and the cliffs: neighbouring sizes between which
time more than doubles beyond their ratio. Those are measured again, and the ones that
stay are named at the end. A provider that this build does not have is a note.`,
		Example: `  fabric-bench suite
  fabric-bench suite --quick --out out/quick
  fabric-bench suite --providers quic,attach --conns 1000
  fabric-bench suite --fail-on-cliff`,
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", filepath.Join("out", "bench"), "directory to write to")
	f.StringSliceVar(&o.providers, "providers", suiteProviders, "what to measure")
	f.Int64Var(&o.conns, "conns", 10_000, "up to how many connections conn_scale opens")
	f.StringSliceVar(&o.rows, "rows", nil, "of the targets only these rows, as anchors has them (default all)")
	f.StringSliceVar(&o.tests, "tests", nil, "only these tests (default all)")
	f.BoolVar(&o.cliffFails, "fail-on-cliff", false, cliffFailsHelp)
	f.BoolVar(&o.quick, "quick", false, "a minute instead of the better part of an hour; rough")
	f.IntVar(&o.reps, "reps", 5, "repetitions")
	f.DurationVar(&o.duration, "duration", 300*time.Millisecond, "about how long a repetition of a target takes")
	f.StringVar(&o.fabricd, "fabricd", "", "the fabricd to run (default: beside this program, ./bin, $PATH)")
	o.clusterFlags(f)
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.format = "table"
		if o.quick && !cmd.Flags().Changed("reps") {
			o.reps = 2
		}
		if o.quick && !cmd.Flags().Changed("duration") {
			o.duration = 20 * time.Millisecond
		}
		if err := o.check(); err != nil {
			return err
		}
		for _, p := range o.providers {
			if !slices.Contains(providers, p) {
				return usagef("--providers %q: one of %s", p, strings.Join(providers, ", "))
			}
		}
		if err := checkRows(o.rows); err != nil {
			return err
		}
		if _, err := testsNamed(o.tests); err != nil {
			return err
		}
		return a.suite(cmd.Context(), o)
	}
	return cmd
}

// suite measures and writes. What fails is in the report, and then the error.
func (a *app) suite(ctx context.Context, o *suiteOptions) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	d := a.newDocument(thisMachine())
	var failures []error
	for _, provider := range o.providers {
		err := a.suiteProvider(ctx, d, o, provider)
		if ctx.Err() != nil {
			break
		}
		failures = append(failures, err)
	}
	if ctx.Err() == nil {
		failures = append(failures, a.measureTargets(ctx, d, &o.anchorOptions, o.rows), a.suiteFailures(ctx, d, o))
	}
	err := errors.Join(failures...)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if err = errors.Join(err, a.writeSuite(d, o.out), a.printSuite(d, o.out)); err != nil {
		return err
	}
	return judgeCliffs(a.stderr, d.Cliffs, o.cliffFails)
}

// How many daemons a suite kills for fail_recover and fail_blast: at most.
const (
	suiteRecoveries = 7
	suiteBlasts     = 4
)

// suiteFailures measures the tests of failure that are no targets.
func (a *app) suiteFailures(ctx context.Context, d *Document, o *suiteOptions) error {
	if o.kills == 0 || ctx.Err() != nil || len(o.rows) > 0 && !slices.Contains(o.rows, keyLoss) {
		return nil
	}
	common := lossOptions{o.cluster("normal"), min(o.kills, suiteRecoveries)}
	blast := &blastOptions{common, blastRate, blastDuration}
	blast.nodes, blast.kills = blastNodes, min(o.kills, suiteBlasts)
	return errors.Join(a.measureRecovery(ctx, d, &common), a.measureBlast(ctx, d, blast), a.suiteMembership(ctx, d, o))
}

// How much a suite measures of replays and joins: at most.
const (
	suiteReplays = 3
	suiteJoins   = 5
)

// suiteMembership measures the other tests of whole clusters, beside memberlist
// alone if that is measured at all.
func (a *app) suiteMembership(ctx context.Context, d *Document, o *suiteOptions) error {
	cluster := o.cluster("normal")
	replay := &replayOptions{fabricd: o.fabricd, seed: 1, reps: min(o.kills, suiteReplays), quiet: o.quiet}
	join := &joinOptions{cluster, min(o.kills, suiteJoins), o.stock > 0}
	return errors.Join(a.measureReplay(ctx, d, replay), a.measureJoins(ctx, d, join))
}

// suiteProvider measures one provider: the sweep, then the other tests. A test
// that fails does not keep the others from being measured.
func (a *app) suiteProvider(ctx context.Context, d *Document, o *suiteOptions, provider string) error {
	p := o.pace()
	b := &bench{row: thisMachine(), seed: 1, conns: o.conns, progress: a.progressOf(o.quiet, provider)}
	b.row.RunID = d.RunID
	if err := b.start(ctx, bed{fabricd: o.fabricd}, provider); err != nil {
		return fmt.Errorf("%s: %w", provider, err)
	}
	picked, err := testsNamed(o.tests)
	failures, begun := []error{err}, len(d.Results)
	for _, t := range picked {
		sizes := p.sizes
		b.reps, b.budget = p.reps, budget{duration: p.rep, warmup: -1}
		if slices.Contains(sweepTests, t.name) {
			sizes = p.sweepSizes
			b.reps, b.budget = p.sweepReps, budget{duration: p.sweep, warmup: -1}
		}
		failures = append(failures, b.runAll(ctx, []*test{t}, sizes, d))
		if ctx.Err() != nil {
			break
		}
	}
	b.reps, b.budget = p.reps, budget{duration: p.rep, warmup: -1}
	found, pairs, err := b.cliffs(ctx, d.Results[begun:])
	d.Cliffs, d.CliffPairs = append(d.Cliffs, found...), d.CliffPairs+pairs
	for _, n := range b.notes {
		d.note("%s", n)
	}
	return errors.Join(errors.Join(failures...), err, b.close())
}

// progressOf is progress with a prefix.
func (a *app) progressOf(quiet bool, prefix string) func(format string, args ...any) {
	tell := a.progress(quiet)
	return func(format string, args ...any) { tell("%s: %s", prefix, fmt.Sprintf(format, args...)) }
}

// writeSuite writes the files of a suite.
func (a *app) writeSuite(d *Document, dir string) error {
	r := suiteReport(d)
	page, err := r.HTML()
	if err != nil {
		return err
	}
	var results, rows strings.Builder
	if err := errors.Join(writeJSON(&results, d), writeCSV(&rows, rowsOf(d))); err != nil {
		return err
	}
	files := map[string]string{"report.html": page, "report.md": r.Markdown(), "results.json": results.String(), "results.csv": rows.String()}
	for _, s := range r.Sections {
		for _, c := range s.Charts {
			files[c.File] = c.SVG
		}
	}
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return err
}

// printSuite prints what a person wants to know at once.
func (a *app) printSuite(d *Document, dir string) error {
	short := *d
	short.Results, short.Ratios, short.Losses = nil, nil, nil
	err := writeTable(a.stdout, &short)
	fmt.Fprintf(a.stdout, "\nThe whole report: %s\n", filepath.Join(dir, "report.html"))
	return err
}
