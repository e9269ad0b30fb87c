package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// measureClusters measures the rows that need eight daemons.
func (a *app) measureClusters(ctx context.Context, d *Document, o *anchorOptions, wanted func(string) bool) error {
	for _, row := range []struct {
		key     string
		measure func(context.Context, *Document, *anchorOptions) error
	}{
		{keyLoss, a.lossTargets}, {keyHeal, a.healTargets}, {keyFalse, a.falseTargets}, {keyIdle, a.idleTargets},
	} {
		if !wanted(row.key) {
			continue
		}
		if err := row.measure(ctx, d, o); err != nil {
			return err
		}
	}
	return nil
}

// cluster returns the eight daemons of the design's table.
func (o *anchorOptions) cluster(detection string) clusterOptions {
	return clusterOptions{fabricd: o.fabricd, nodes: 8, detection: detection, quiet: o.quiet}
}

// lossSeries returns the losses of the design's table.
func (o *anchorOptions) lossSeries() []series {
	all := (&failOptions{kills: o.kills, stops: o.stops}).series()
	normal := all[1]
	normal.detection, normal.target = "normal", stopMaxTargets["normal"]
	return append(all, normal)
}

func (a *app) lossTargets(ctx context.Context, d *Document, o *anchorOptions) error {
	_, missing := findFabricd(o.fabricd)
	anchor := a.stockAnchor(ctx, d, o)
	for _, s := range o.lossSeries() {
		t := Target{Key: keyLoss, What: s.how + " to NODE_REMOVED, 8 nodes, " + s.detection, Unit: "ms",
			Ours: spreadOf(nil), Raw: spreadOf(nil), Ratio: spreadOf(nil)}
		var losses []Loss
		row, err := rowOf(d), missing
		if s.count == 0 {
			err = errors.New("left out: --kills or --stops is 0")
		}
		if err == nil {
			cluster := o.cluster(s.detection)
			onKeeper(func() { losses, row, err = strikeAll(ctx, &cluster, s, row, a.progress(o.quiet)) })
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.Losses = append(d.Losses, losses...)
		d.addLosses(row, s, losses)
		if err != nil {
			t.Why = err.Error()
		}
		ours := milliseconds(losses, removed)
		d.Targets = append(d.Targets, lossRows(t, s, ours)...)
		raw, err := anchor(s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.Targets = append(d.Targets, stockRow(t, ours, raw, err))
	}
	return nil
}

// stockLeftOut is why memberlist alone is not measured.
const stockLeftOut = "left out: --stock is 0"

// stockDefault is how many losses of memberlist alone are measured.
const stockDefault = 5

// stockAnchor returns what measures memberlist alone for a series, in
// milliseconds: once for each way to be lost, whatever the detection.
func (a *app) stockAnchor(ctx context.Context, d *Document, o *anchorOptions) func(s series) ([]figure, error) {
	type result struct {
		ms  []figure
		err error
	}
	known := map[string]result{}
	return func(s series) ([]figure, error) {
		if r, ok := known[s.how]; ok {
			return r.ms, r.err
		}
		var r result
		if o.stock == 0 {
			r.err = errors.New(stockLeftOut)
		} else {
			var run stockRun
			onKeeper(func() { run, r.err = strikeStock(ctx, 8, o.stock, s, a.progress(o.quiet)) })
			d.addStock(rowOf(d), run)
			r.ms = milliseconds(run.losses, removed)
		}
		known[s.how] = r
		return r.ms, r.err
	}
}

// lossRows returns the rows of one series: the 99th percentile, if it has a
// target, and the longest.
func lossRows(t Target, s series, ms []figure) (rows []Target) {
	row := func(what string, at, target figure) {
		one := t
		one.What += ", " + what
		one.Ours = Spread{Min: spreadOf(ms).Min, Median: at, Max: spreadOf(ms).Max}
		one.AtMost = &target
		rows = append(rows, one.judge())
	}
	if s.p99 > 0 {
		row("p99", quantile(ms, .99), s.p99)
	}
	row("max", spreadOf(ms).Max, s.target)
	return rows
}

// quantile returns the value that a share q of v is not above; absent of nothing.
func quantile(v []figure, q float64) figure {
	if len(v) == 0 {
		return absent
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// healTargets adds the rows of clusters that were split, by how soon they notice it.
func (a *app) healTargets(ctx context.Context, d *Document, o *anchorOptions) error {
	for _, detection := range []string{"fast", "normal"} {
		split := &splitOptions{o.cluster(detection), o.splits}
		var all []Split
		err := errors.New("left out: --splits is 0")
		if o.splits > 0 {
			all, err = a.measureSplits(ctx, d, split)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.addUnanchored(keyHeal, err, splitTargets(detection, all)...)
	}
	return nil
}

// splitTargets returns the rows of splits with one detection.
func splitTargets(detection string, all []Split) []Target {
	var cut, healed []figure
	for _, s := range all {
		healed = append(healed, s.Healed/1e3)
		for _, us := range s.Removed {
			cut = append(cut, us/1e3)
		}
	}
	return []Target{
		{What: "partition to NODE_REMOVED, 8 nodes, " + detection + ", max", Unit: "ms", Ours: worst(cut), AtMost: atMostOf(stopMaxTargets[detection])},
		{What: "a split healed to full mesh, " + detection + ", max", Unit: "ms", Ours: worst(healed), AtMost: atMostOf(healTarget)},
	}
}

// addUnanchored adds rows that have a bound and no anchor; err is why they are not
// measured.
func (d *Document) addUnanchored(key string, err error, rows ...Target) {
	for _, t := range rows {
		t.Key, t.Raw, t.Ratio = key, spreadOf(nil), spreadOf(nil)
		if err != nil {
			t.Why = err.Error()
		}
		d.Targets = append(d.Targets, t.judge())
	}
}

// calmsDefault is how often daemons are left alone.
const calmsDefault = 5

// falseTargets adds the rows of daemons that are left alone on a machine that is
// too busy, beside memberlist alone if that is measured at all.
func (a *app) falseTargets(ctx context.Context, d *Document, o *anchorOptions) error {
	calm := &falseOptions{clusterOptions: o.cluster("normal"), reps: o.calms, hogs: hogsByDefault(), during: calmByDefault, anchor: o.stock > 0}
	err := errors.New("left out: --calms is 0")
	var ours, raw []Calm
	if o.calms > 0 {
		ours, raw, err = a.measureFalse(ctx, d, calm)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.addFalseTargets(calm, ours, raw, err)
	return nil
}

// addFalseTargets adds how many were taken for lost in each calm, and how many an
// hour beside memberlist alone.
func (d *Document) addFalseTargets(o *falseOptions, ours, raw []Calm, err error) {
	what := fmt.Sprintf("removals of nodes that are well, %d nodes beside %d hogs", o.nodes, o.hogs)
	counts := func(all []Calm) (n []figure) {
		for _, c := range all {
			n = append(n, figure(c.False))
		}
		return n
	}
	d.addUnanchored(keyFalse, err, Target{What: what + ", max", Unit: "removals", Ours: worst(counts(ours)), AtMost: atMostOf(0)})
	t := Target{Key: keyFalse, What: what, Unit: "removals", Anchor: memberlistAlone, Ours: spreadOf(counts(ours)), Raw: spreadOf(counts(raw)), Ratio: spreadOf(nil)}
	switch {
	case err != nil:
		t.Why = err.Error()
	case len(raw) == 0:
		t.Why = stockLeftOut
	}
	d.Targets = append(d.Targets, t.judge())
}

// idleTargets adds the rows of daemons that have nothing to do.
func (a *app) idleTargets(ctx context.Context, d *Document, o *anchorOptions) error {
	idle := &idleOptions{o.cluster("normal"), idleWindows, idleSettling, o.idle}
	var all []Idle
	err := errors.New("left out: --idle is 0")
	if o.idle > 0 {
		onKeeper(func() { all, err = measureIdle(ctx, idle) })
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.Idle = append(d.Idle, all...)
	cpu, rss := mostOf(all)
	d.addUnanchored(keyIdle, err,
		Target{What: "idle daemon, 8 nodes: the busiest", Unit: "% of a core", Ours: cpu, AtMost: atMostOf(idleCPUTarget)},
		Target{What: "idle daemon, 8 nodes: the largest", Unit: "MB", Ours: rss, AtMost: atMostOf(idleRSSTarget)})
	return nil
}

// worst is the spread of v whose median is its largest: the one that is judged.
func worst(v []figure) Spread {
	s := spreadOf(v)
	s.Median, s.PerRep = s.Max, nil
	return s
}

// onKeeper runs f on a goroutine that keeps its thread and ends with f.
func onKeeper(f func()) {
	k := newKeeper()
	defer k.close()
	k.do(f)
}
