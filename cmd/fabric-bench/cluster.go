package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// A clusterOptions is what the flags of the tests that start daemons have in
// common.
type clusterOptions struct {
	fabricd   string
	nodes     int
	detection string
	providers string // of the daemons; empty: as fabricd has it
	format    string
	quiet     bool
}

func (o *clusterOptions) flags(cmd *cobra.Command, nodes int) {
	f := cmd.Flags()
	f.StringVar(&o.fabricd, "fabricd", "", "the fabricd to run (default: beside this program, ./bin, $PATH)")
	f.IntVar(&o.nodes, "nodes", nodes, "daemons")
	f.StringVar(&o.detection, "detection", "normal", "fast, normal or calm")
	f.StringVar(&o.providers, "providers", "", "what carries the data of the daemons, as of fabricd run (default: as fabricd has it, quic before tcp)")
	f.StringVar(&o.format, "format", "table", "table, csv or json")
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
}

// check refuses values that make no sense; fewest is how many nodes are needed.
func (o *clusterOptions) check(fewest int) error {
	if o.nodes < fewest || o.nodes > 64 {
		return usagef("--nodes %d: %d to 64", o.nodes, fewest)
	}
	return checkChoices(o.detection, o.format)
}

// daemonFlags returns the flags of every daemon.
func (o *clusterOptions) daemonFlags() []string {
	flags := []string{"--detection", o.detection}
	if o.providers != "" {
		flags = append(flags, "--providers", o.providers)
	}
	return flags
}

// onCluster is onTrial on a goroutine that keeps its thread. A failure names the
// test.
func (o *clusterOptions) onCluster(ctx context.Context, test string, do func(g *trial) error, options ...string) (c carrier, err error) {
	// Children die with the thread that started them; this goroutine keeps it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c, err = onTrial(ctx, o, do, options...); err != nil {
		err = fmt.Errorf("%s: %w", test, err)
	}
	return c, err
}

// reportOn measures into a document and reports, also what there was before a
// failure.
func (a *app) reportOn(format string, measure func(d *Document) error) error {
	d := a.newDocument(thisMachine())
	err := measure(d)
	return errors.Join(err, a.report(d, format))
}
