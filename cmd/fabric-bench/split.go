package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults"
)

// healTest is from the end of a split until all nodes see each other.
const healTest = "fail_heal"

// healTarget is the design's, in milliseconds.
const healTarget = figure(5000)

// splitsByDefault is how many splits there are.
const splitsByDefault = 5

// splitSettling is how long a split goes on after the host's half has told it: so
// long the other half may take to find out that it is alone.
const splitSettling = 3 * time.Second

// A Split is a cluster that was two for a while.
type Split struct {
	Nodes     int      `json:"nodes"`
	Apart     int      `json:"apart"` // those without the host
	Detection string   `json:"detection"`
	Removed   []figure `json:"node_removed_us"` // from the cut, of each node apart at each of the others
	Healed    figure   `json:"healed_us"`       // from the end of the cut until everybody sees all again
}

// A splitOptions is what the flags of fail_heal say.
type splitOptions struct {
	clusterOptions
	splits int
}

func (a *app) failHealCommand() *cobra.Command {
	o := &splitOptions{}
	cmd := &cobra.Command{
		Use: healTest, Short: "Split a cluster of daemons in two, and measure until it is one again", Args: cobra.NoArgs,
		Long: `fail_heal starts fabricd processes on loopback with faults enabled and cuts half of
them from the host's half. Measured is how long after the cut each node of the
host's half has the NODE_REMOVED of each of the others, and how long after the end
of the cut every node sees all again, with the next lives of those that were
removed. Memberlist alone never heals a split that it has noticed.`,
		Example: `  fabric-bench run fail_heal
  fabric-bench run fail_heal --providers tcp
  fabric-bench run fail_heal --nodes 5 --splits 10 --detection fast --format json`,
	}
	o.flags(cmd, 8)
	cmd.Flags().IntVar(&o.splits, "splits", splitsByDefault, "how many splits, one after the other")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.splits < 1 || o.splits > 1000 {
			return usagef("--splits %d: 1 to 1000", o.splits)
		}
		if err := o.check(3); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error {
			_, err := a.measureSplits(cmd.Context(), d, o)
			return err
		})
	}
	return cmd
}

// measureSplits adds the rows, the splits and the checks of fail_heal.
func (a *app) measureSplits(ctx context.Context, d *Document, o *splitOptions) (all []Split, err error) {
	progress := a.progress(o.quiet)
	c, err := o.onCluster(ctx, healTest, func(g *trial) error {
		for len(all) < o.splits {
			s, err := g.split(ctx, o.detection)
			if err != nil {
				return fmt.Errorf("split %d of %d: %w", len(all)+1, o.splits, err)
			}
			all = append(all, s)
			progress("%s: %d of %d", healTest, len(all), o.splits)
		}
		return nil
	}, "--enable-faults")
	d.addSplits(o, c, all)
	return all, err
}

func (d *Document) addSplits(o *splitOptions, c carrier, all []Split) {
	if len(all) == 0 {
		return
	}
	d.Splits = append(d.Splits, all...)
	var cut, healed []Loss // for the rows
	for _, s := range all {
		cut = append(cut, Loss{Removed: s.Removed})
		healed = append(healed, Loss{Recovered: []figure{s.Healed}})
	}
	row := rowOf(d)
	row.carriedBy(c)
	row.Test, row.Dir = eventTest, "partition, detection "+o.detection
	d.Checks = append(d.Checks, atMost("partition: "+eventTest+" max", d.addLossRow(row, cut, removed).Max/1e3, "ms", stopMaxTargets[o.detection]))
	row.Test, row.Dir = healTest, "partition healed, detection "+o.detection
	p := d.addLossRow(row, healed, func(l Loss) []figure { return l.Recovered })
	d.Checks = append(d.Checks, atMost(healTest+" max", p.Max/1e3, "ms", healTarget))
}

// split cuts the second half of the cluster off and lets it come back.
func (g *trial) split(ctx context.Context, detection string) (s Split, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*strikeLimit)
	defer cancel()
	half := len(g.posts) - len(g.posts)/2
	var stay, apart []fabric.Life
	for i, p := range g.posts {
		if i < half {
			stay = append(stay, p.node.Life())
		} else {
			apart = append(apart, p.node.Life())
		}
	}
	b := &adminBreaker{}
	for _, d := range g.fleet.daemons {
		b.nodes = append(b.nodes, adminClient(d.admin()))
	}
	s = Split{Nodes: len(g.posts), Apart: len(apart), Detection: detection}
	began := time.Now()
	if err := b.add(ctx, cutBetween(stay, apart)); err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clear(context.WithoutCancel(ctx)))
		}
	}()
	err = g.front(half, func(p *post) error {
		return p.gather(ctx, fabric.NodeRemoved, apart, func(ev stamped) { s.Removed = append(s.Removed, microseconds(ev.at.Sub(began))) })
	})
	if err != nil {
		return s, err
	}
	if !wait(ctx, splitSettling) {
		return s, ctx.Err()
	}
	for _, p := range g.posts[half:] {
		p.close()
	}
	if err := b.clear(ctx); err != nil {
		return s, err
	}
	return s, g.heal(ctx, half, apart, &s)
}

// heal waits until those that were apart are back.
func (g *trial) heal(ctx context.Context, half int, apart []fabric.Life, s *Split) error {
	began, last := time.Now(), time.Time{}
	var next []fabric.Life
	for _, l := range apart {
		next = append(next, lifeAfter(l))
	}
	err := g.front(half, func(p *post) error {
		return p.gather(ctx, fabric.NodeAdded, next, func(ev stamped) {
			if ev.at.After(last) {
				last = ev.at
			}
		})
	})
	for i := half; i < len(g.posts) && err == nil; i++ {
		var node *fabric.Node
		if node, err = g.back(ctx, i, next[i-half]); err == nil {
			last = time.Now()
			err = g.observe(ctx, i, node)
		}
	}
	s.Healed = microseconds(last.Sub(began))
	return err
}

// back attaches to daemon i as soon as that is life and sees everybody.
func (g *trial) back(ctx context.Context, i int, life fabric.Life) (node *fabric.Node, err error) {
	err = untilEvery(ctx, pollEvery, func() error {
		n, err := fabric.Attach(ctx, g.fleet.daemons[i].socket())
		if err != nil {
			return err
		}
		ids, _, err := n.Nodes()
		if err == nil && n.Life() == life && len(ids) == len(g.posts) {
			node = n
			return nil
		}
		return errors.Join(fmt.Errorf("%s is %v and sees %d nodes", g.fleet.daemons[i].name, n.Life(), len(ids)), err, n.Close())
	})
	return node, err
}

// front calls do for the first posts.
func (g *trial) front(n int, do func(p *post) error) error {
	for i, p := range g.posts[:n] {
		if err := do(p); err != nil {
			return fmt.Errorf("at node %d: %w", i, err)
		}
	}
	return nil
}

// gather waits for one event of a kind about each of some lives, in any order.
func (p *post) gather(ctx context.Context, kind fabric.EventKind, lives []fabric.Life, see func(stamped)) error {
	missing := slices.Clone(lives)
	for len(missing) > 0 {
		select {
		case ev := <-p.events:
			i := slices.Index(missing, fabric.Life{Node: ev.Node, Generation: ev.Generation})
			if ev.Kind != kind || i < 0 {
				return fmt.Errorf("unexpected event: %v", ev.Event)
			}
			missing = slices.Delete(missing, i, i+1)
			see(ev)
		case <-ctx.Done():
			return fmt.Errorf("no event of %v: %w", missing, ctx.Err())
		}
	}
	return nil
}

// cutBetween returns the rules that let nothing pass between two groups.
func cutBetween(a, b []fabric.Life) []faults.Rule {
	nodes := func(lives []fabric.Life) (all faults.Nodes) {
		for _, l := range lives {
			all = append(all, l.Node)
		}
		return all
	}
	return []faults.Rule{
		{On: faults.All, From: nodes(a), To: nodes(b), Cut: true},
		{On: faults.All, From: nodes(b), To: nodes(a), Cut: true},
	}
}
