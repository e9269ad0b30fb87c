package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/stock"
	"github.com/fabricd/fabricd/fabric"
)

// What is measured of a daemon that joins a cluster.
const (
	joinTest     = "join_time"     // until it is in it
	convergeTest = "converge_time" // until the others see it
)

// A Join is one node that has come into a cluster, in microseconds from the start
// of its process.
type Join struct {
	Provider string   `json:"provider"` // raw-memberlist: the anchor
	Node     uint16   `json:"node"`
	Placed   figure   `json:"placed_us"`     // an application at it had the node's ID; not of the anchor
	Met      figure   `json:"met_us"`        // it saw all others
	Seen     []figure `json:"node_added_us"` // each of the others saw it
}

// A joinOptions is what the flags of join_time say.
type joinOptions struct {
	clusterOptions
	reps   int
	anchor bool
}

func (a *app) joinCommand() *cobra.Command {
	o := &joinOptions{}
	cmd := &cobra.Command{
		Use: joinTest, Aliases: []string{convergeTest}, Short: "Start a new daemon, and measure until it is in and everybody sees it", Args: cobra.NoArgs,
		Long: `join_time, which is converge_time too, starts fabricd processes on loopback, and
then one more that the cluster has never seen: it proves the secret of its join
token, gets a certificate and an ID, and joins. Measured from the start of its
process are the time until an application at it has the node's ID and until it
sees all others (join_time), and the time until each of the others has had its
NODE_ADDED (converge_time). Then it is killed, and the next one starts as another
node. In turns a member joins as many of memberlist alone, a process each: the
anchor, which has neither certificates nor IDs. What has no event is looked for
every millisecond.`,
		Example: `  fabric-bench run join_time
  fabric-bench run converge_time --nodes 16 --reps 10
  fabric-bench run join_time --providers auto
  fabric-bench run join_time --anchor=false --format csv`,
	}
	o.flags(cmd, 8)
	cmd.Flags().IntVar(&o.reps, "reps", 5, "how many join, one after the other")
	cmd.Flags().BoolVar(&o.anchor, "anchor", true, "measure memberlist alone too, in turns")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error { return a.measureJoins(cmd.Context(), d, o) })
	}
	return cmd
}

func (o *joinOptions) check() error {
	if o.reps < 1 || o.reps > 1000 {
		return usagef("--reps %d: 1 to 1000", o.reps)
	}
	return o.clusterOptions.check(2)
}

// measureJoins adds the rows of join_time and converge_time.
func (a *app) measureJoins(ctx context.Context, d *Document, o *joinOptions) error {
	var ours, raw []Join
	progress := a.progress(o.quiet)
	c, err := o.onCluster(ctx, joinTest, func(g *trial) error {
		turns := []func() error{func() error {
			j, err := g.join(ctx)
			if err == nil {
				ours = append(ours, j)
			}
			return err
		}}
		if o.anchor {
			c, err := startStock(ctx, o.nodes)
			if err != nil {
				return err
			}
			defer c.Close()
			turns = append(turns, func() error {
				j, err := joinStock(ctx, c)
				if err == nil {
					raw = append(raw, j)
				}
				return err
			})
		}
		for rep := range o.reps {
			for i := range turns {
				if err := turns[(i+rep)%len(turns)](); err != nil {
					return fmt.Errorf("join %d of %d: %w", rep+1, o.reps, err)
				}
			}
			progress("%s: %d of %d", joinTest, rep+1, o.reps)
		}
		return nil
	})
	for i := range ours {
		ours[i].Provider = c.String()
	}
	d.Joins = append(append(d.Joins, ours...), raw...)
	d.addJoins(rowOf(d), c, o.nodes, ours, raw)
	return err
}

// join starts a daemon that the cluster has not seen, waits until everybody sees
// it, and ends it.
func (g *trial) join(ctx context.Context) (j Join, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*strikeLimit)
	defer cancel()
	d := g.fleet.newcomer()
	defer func() { err = errors.Join(err, g.fleet.forget(d)) }()
	others := len(g.posts)
	began := time.Now()
	if err := g.fleet.start(d); err != nil {
		return j, err
	}
	node, err := attachEvery(ctx, d, redialEvery)
	if err != nil {
		return j, err
	}
	life := node.Life()
	j = Join{Node: uint16(life.Node), Placed: microseconds(time.Since(began))}
	if err = seesEvery(ctx, node, others+1, redialEvery); err == nil {
		j.Met = microseconds(time.Since(began))
		err = g.each(-1, func(p *post) error {
			return p.next(ctx, fabric.NodeAdded, life, func(ev stamped) { j.Seen = append(j.Seen, microseconds(ev.at.Sub(began))) })
		})
	}
	d.kill()
	if err = errors.Join(err, node.Close()); err != nil {
		return j, err
	}
	return j, g.each(-1, func(p *post) error { return p.next(ctx, fabric.NodeRemoved, life, func(stamped) {}) })
}

// newcomer adds a daemon of which the cluster knows nothing.
func (f *fleet) newcomer() *daemon {
	f.newcomers++
	return f.add(fmt.Sprintf("newcomer-%d", f.newcomers), f.joining...)
}

// forget ends the daemon that was added last, and removes its files.
func (f *fleet) forget(d *daemon) error {
	d.kill()
	f.daemons = f.daemons[:len(f.daemons)-1]
	return os.RemoveAll(d.dir)
}

// joinStock is join for memberlist alone.
func joinStock(ctx context.Context, c *stock.Cluster) (Join, error) {
	s, err := c.Join(ctx)
	j := Join{Provider: rawMemberlist, Node: uint16(c.Len()), Placed: absent, Met: microseconds(s.Met)}
	for _, at := range s.Seen {
		j.Seen = append(j.Seen, microseconds(at))
	}
	return j, err
}

// addJoins adds the rows of joins into clusters of n nodes, and ours beside the
// anchor's.
func (d *Document) addJoins(row Row, c carrier, n int, ours, raw []Join) {
	for _, m := range []struct {
		test, dir string
		of        func(Join) []figure
		compared  bool // with the anchor's
	}{
		{joinTest, "until it has its ID", func(j Join) []figure { return []figure{j.Placed} }, false},
		{joinTest, fmt.Sprintf("until it sees all %d others", n), func(j Join) []figure { return []figure{j.Met} }, true},
		{convergeTest, fmt.Sprintf("until the last of %d sees it", n), func(j Join) []figure { return []figure{spreadOf(j.Seen).Max} }, true},
		{convergeTest, fmt.Sprintf("until each of %d sees it", n), func(j Join) []figure { return j.Seen }, false},
	} {
		row.Test, row.Dir = m.test, m.dir
		row.carriedBy(c)
		mine, ok := d.addTimes(row, ours, m.of)
		row.Provider, row.Security = rawMemberlist, "none"
		theirs, both := d.addTimes(row, raw, m.of)
		if m.compared && ok && both {
			d.Ratios = append(d.Ratios, compareRatio(mine, theirs))
		}
	}
}

// addTimes adds a row of times, in microseconds, a repetition for each join; false
// if nothing was measured.
func (d *Document) addTimes(row Row, joins []Join, of func(Join) []figure) (Result, bool) {
	var samples []sample
	for _, j := range joins {
		s := sample{lat: newHistogram()}
		for _, us := range of(j) {
			if us.measured() {
				record(s.lat, time.Duration(float64(us)*float64(time.Microsecond)))
				s.ops++
			}
		}
		if s.ops > 0 {
			samples = append(samples, s)
		}
	}
	if len(samples) == 0 {
		return Result{}, false
	}
	r := wholeTrip.reduce(row, samples)
	r.Rate = absent // nothing was done as often as possible
	d.Results = append(d.Results, r)
	return r, true
}
