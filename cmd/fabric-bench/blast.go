package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
)

// blastTest is what pairs of nodes feel while another node dies.
const blastTest = "fail_blast"

const (
	blastSize   = 64                     // bytes of a message
	blastLead   = 100 * time.Millisecond // from the begin of a measurement to the kill
	blastWarmup = 100                    // messages
)

// What fail_blast does unless it is told otherwise.
const (
	blastNodes    = 5
	blastRate     = 500 // messages a second of each pair
	blastDuration = 2 * time.Second
)

// A blastOptions is what the flags of fail_blast say.
type blastOptions struct {
	lossOptions
	rate   float64       // messages a second of each pair
	during time.Duration // before a kill, and again with it
}

func (o *blastOptions) check() error {
	switch {
	case !(o.rate >= 1 && o.rate <= 100_000):
		return usagef("--rate %v: 1 to 100000 a second", o.rate)
	case o.during < 2*blastLead || o.during > time.Minute:
		return usagef("--duration %v: %v to 1m", o.during, 2*blastLead)
	}
	return o.lossOptions.check(3)
}

func (a *app) failBlastCommand() *cobra.Command {
	o := &blastOptions{}
	cmd := &cobra.Command{
		Use: blastTest, Short: "Kill daemons, and measure what the other pairs feel", Args: cobra.NoArgs,
		Long: `fail_blast starts fabricd processes on loopback and kills one after the other with
SIGKILL. Every other node sends messages of 64 bytes to the next one at a fixed
rate, for a while before the kill and for as long with it, and each message is
measured from when it was due until its echo is here: a stall counts for all
messages that it delays. Every node also has a connection to the one that dies.
The report has the latencies before and with the kill, and the ratio of both p99.`,
		Example: `  fabric-bench run fail_blast
  fabric-bench run fail_blast --providers tcp
  fabric-bench run fail_blast --nodes 8 --kills 10 --rate 1000 --duration 5s`,
	}
	o.flags(cmd, blastNodes, 8)
	cmd.Flags().Float64Var(&o.rate, "rate", blastRate, "messages a second of each pair")
	cmd.Flags().DurationVar(&o.during, "duration", blastDuration, "how long to measure before each kill, and again with it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error { return a.measureBlast(cmd.Context(), d, o) })
	}
	return cmd
}

// measureBlast adds the rows and the losses of fail_blast.
func (a *app) measureBlast(ctx context.Context, d *Document, o *blastOptions) error {
	var before, with []sample
	c, err := o.loseInTurn(ctx, a, blastTest, func(g *trial, victim int) error {
		quiet, struck, l, err := g.blast(ctx, victim, o)
		if err == nil {
			before, with, d.Losses = append(before, quiet), append(with, struck), append(d.Losses, l)
		}
		return err
	})
	if len(before) > 0 {
		row := rowOf(d)
		row.carriedBy(c)
		d.Results = append(d.Results, o.rows(row, before, with)...)
	}
	return err
}

// rows returns the rows, like row, before and with the kills, a repetition for each kill.
func (o *blastOptions) rows(row Row, before, with []sample) []Result {
	pairs := int64(o.nodes - 1)
	row.Test = blastTest
	row.Size, row.Pairs, row.Conns, row.Validated = blastSize, pairs, pairs, true
	kind := reduction{both: true}
	row.Dir = "before"
	all := []Result{kind.reduce(row, before)}
	row.Dir = "while a node dies"
	struck := kind.reduce(row, with)
	struck.P99Ratio = p99Ratio(before, with)
	return append(all, struck)
}

// p99Ratio returns the median of the repetitions' ratios of p99.
func p99Ratio(before, with []sample) figure {
	var ratios []figure
	for i := range min(len(before), len(with)) {
		ratios = append(ratios, figure(with[i].lat.ValueAtPercentile(99))/figure(max(before[i].lat.ValueAtPercentile(99), 1)))
	}
	return median(ratios)
}

// blast measures the pairs that daemon v is not part of, and again while it is
// killed, and brings it back.
func (g *trial) blast(ctx context.Context, v int, o *blastOptions) (before, with sample, l Loss, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*o.during+3*strikeLimit)
	defer cancel()
	life := g.posts[v].node.Life()
	l = Loss{How: "kill -9", Node: uint16(life.Node), Life: uint16(life.Generation)}
	wakes, err := g.block(ctx, v)
	if err != nil {
		return before, with, l, err
	}
	side, err := g.bystanders(v)
	if err != nil {
		return before, with, l, err
	}
	defer func() { err = first(err, side.close()) }()
	line := &lineup{test: &test{kind: reduction{both: true}, load: newPaced}, side: side,
		job: job{size: blastSize, seed: 1, check: true, pairs: int64(len(side.flows)), rate: o.rate}}
	defer func() { err = first(err, line.end()) }()
	if err = line.man(ctx); err != nil {
		return before, with, l, err
	}
	messages := max(int64(o.rate*o.during.Seconds()), 1)
	if _, err = line.pass(ctx, min(messages, blastWarmup)); err != nil {
		return before, with, l, err
	}
	if before, err = line.pass(ctx, messages); err != nil {
		return before, with, l, err
	}
	struck := g.killSoon(v)
	if with, err = line.pass(ctx, messages); err != nil {
		return before, with, l, first(err, (<-struck).err)
	}
	kill := <-struck
	if kill.err != nil {
		return before, with, l, kill.err
	}
	if err = g.collect(ctx, v, life, kill.at, wakes, &l); err != nil {
		return before, with, l, err
	}
	l.Back, err = g.comeBack(ctx, v, life)
	return before, with, l, err
}

// killSoon kills daemon v after blastLead. The channel receives once that has
// been done.
func (g *trial) killSoon(v int) <-chan wake {
	struck := make(chan wake, 1)
	victim := g.fleet.daemons[v].cmd.Process
	time.AfterFunc(blastLead, func() {
		struck <- wake{post: v, at: time.Now(), err: victim.Kill()}
	})
	return struck
}

// bystanders returns a side of the pairs without v: each sends to the next.
func (g *trial) bystanders(v int) (*bystandSide, error) {
	m := &mesh{provider: g.carrier.String()}
	for i, p := range g.posts {
		if i == v {
			continue
		}
		s, err := serve(p.node, 0)
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.nodes, m.servers = append(m.nodes, p.node), append(m.servers, s)
		m.others = append(m.others, g.fleet.daemons[i].cmd.Process.Pid)
	}
	return &bystandSide{flowSide{m, flowsOf("ring", len(m.nodes))}}, nil
}

// A bystandSide is a flowSide whose end is that of its servers; the nodes are the
// trial's.
type bystandSide struct{ flowSide }

func (s *bystandSide) close() error { return s.mesh.close() }
