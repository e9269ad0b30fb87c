package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// A node that joins is seen by all others, comes with an ID of its own each time,
// and is measured beside memberlist alone.
func TestJoinsAreMeasuredAtTheNewNodeAndAtTheOthers(t *testing.T) {
	temporaries(t)
	d := document(t, "run", convergeTest, "--fabricd", buildFabricd(t), "--nodes", "2", "--reps", "2", "--providers", "tcp")
	carriedAll(t, d, "tcp")
	if len(d.Joins) != 4 || len(d.Results) != 7 || len(d.Ratios) != 2 {
		t.Fatalf("%d joins, %d rows, %d ratios; want 4, 7 and 2", len(d.Joins), len(d.Results), len(d.Ratios))
	}
	for i, j := range d.Joins {
		ours := i < 2
		if len(j.Seen) != 2 || j.Met <= 0 || spreadOf(j.Seen).Min <= 0 || j.Placed.measured() != ours || ours && (j.Placed > j.Met || j.Node != uint16(2+i)) {
			t.Errorf("join %d is %+v", i, j)
		}
	}
	for i, want := range []string{joinTest, joinTest, joinTest, convergeTest, convergeTest, convergeTest, convergeTest} {
		if r := d.Results[i]; r.Test != want || r.Reps != 2 || r.Min <= 0 || r.Median < r.Min || r.Max < r.Median || r.Rate.measured() {
			t.Errorf("row %d is %+v, want %s of 2 joins", i, r.Row, want)
		}
	}
}

// Nodes that are left alone beside hogs are counted, in both clusters.
func TestCalmNodesAreWatchedBesideHogs(t *testing.T) {
	temporaries(t)
	d := document(t, "run", falseTest, "--fabricd", buildFabricd(t), "--nodes", "2", "--reps", "1", "--hogs", "1", "--duration", "200ms", "--detection", "calm", "--providers", "tcp,quic")
	carriedAll(t, d, "tcp,quic") // there is no link
	if len(d.Calms) != 2 || len(d.Results) != 2 || len(d.Checks) != 1 {
		t.Fatalf("%d calms, %d rows, %d checks; want 2, 2 and 1", len(d.Calms), len(d.Results), len(d.Checks))
	}
	for i, c := range d.Calms {
		if c.Nodes != 2 || c.Hogs != 1 || c.Seconds < 0.2 || (c.Provider == rawMemberlist) != (i == 1) {
			t.Errorf("calm %d is %+v", i, c)
		}
		if r := d.Results[i]; r.Test != falseTest || !near(r.FalseRate, c.Rate) || r.Reps != 1 {
			t.Errorf("row %d is %+v, want the rate %v", i, r.Row, c.Rate)
		}
	}
}

// What was removed without cause is counted once for each that saw it, and for
// each node-hour.
func TestFalseRemovalsAreCounted(t *testing.T) {
	g := &trial{posts: []*post{{events: make(chan stamped, 4)}, {events: make(chan stamped, 4)}}}
	see := func(i int, kind fabric.EventKind) {
		g.posts[i].events <- stamped{Event: fabric.Event{Kind: kind, Node: 3, Generation: 1}}
	}
	see(0, fabric.NodeRemoved)
	see(0, fabric.NodeAdded)
	see(1, fabric.NodeRemoved)
	if n := g.removals(); n != 2 {
		t.Errorf("%d removals, want 2", n)
	}
	if n := g.removals(); n != 0 {
		t.Errorf("%d removals once more, want none", n)
	}
	if c := calmOf(providerQUIC, 8, 1, 90e9, 4); !near(c.Rate, 20) || !near(c.Seconds, 90) {
		t.Errorf("4 removals at 8 nodes in 90 s: %+v, want 20 for a node and hour", c)
	}
	d := &Document{}
	o := &falseOptions{clusterOptions: clusterOptions{nodes: 8}}
	d.addCalms(newRow(), o, carrier{}, []Calm{{False: 4, Rate: 20}, {False: 0, Rate: 0}, {False: 1, Rate: 5}}, nil)
	if len(d.Results) != 1 || d.Results[0].FalseRate != 5 || d.Results[0].Max != 20 || d.Results[0].Iters != 5 {
		t.Errorf("%+v", d.Results)
	}
	if len(d.Checks) != 1 || d.Checks[0].Reached || d.Checks[0].Value != 5 {
		t.Errorf("%+v, want five removals too many", d.Checks)
	}
}

// A seed gives one log, byte for byte, and another seed another one.
func TestSimulationsAreReplayed(t *testing.T) {
	temporaries(t)
	d := document(t, "run", replayTest, "--fabricd", buildFabricd(t), "--reps", "2", "--seed", "7")
	if len(d.Replays) != 2 || len(d.Results) != 1 {
		t.Fatalf("%d replays, %d rows; want 2 and 1", len(d.Replays), len(d.Results))
	}
	sum := int64(0)
	for i, r := range d.Replays {
		if r.Seed != uint64(7+i) || !r.Same || !r.Fresh || r.Events < 1000 || r.Rate <= 0 || r.Scenario != "replay" {
			t.Errorf("replay %d is %+v", i, r)
		}
		sum += 2 * r.Events
	}
	if r := d.Results[0]; r.Test != replayTest || r.Iters != sum || r.Errors != 0 || r.Figure != rateFigure || r.Median != r.Rate {
		t.Errorf("the row is %+v, want %d events", r.Row, sum)
	}
}

// A log that its seed does not decide is a failure, and a scenario that is none
// says so.
func TestReplaysThatDifferFail(t *testing.T) {
	if !sameEvents([]byte("seed 1\na\nb\n"), []byte("seed 2\na\nb\n")) || sameEvents([]byte("seed 1\na\n"), []byte("seed 1\nb\n")) || sameEvents([]byte("x\ny\n"), nil) {
		t.Error("logs are compared wrongly")
	}
	good := Replay{Seed: 1, Events: 10, Same: true, Fresh: true}
	if err := judgeReplays([]Replay{good, good}); err != nil {
		t.Error(err)
	}
	two, stale := good, good
	two.Same, stale.Fresh = false, false
	for _, bad := range []Replay{two, stale} {
		if err := judgeReplays([]Replay{good, bad}); !errors.Is(err, errNotReplayed) {
			t.Errorf("%+v: %v, want a failure", bad, err)
		}
		d := &Document{}
		if d.addReplays(newRow(), []Replay{good, bad}); d.Results[0].Errors != 1 {
			t.Errorf("%+v: %d errors, want 1", bad, d.Results[0].Errors)
		}
	}
	code, _, errs := runBench(t, "run", replayTest, "--fabricd", buildFabricd(t), "--scenario", "main.go")
	if code != exitFail || !strings.Contains(errs, "main.go:1") {
		t.Errorf("a file that is no scenario: exit code %d, %s", code, errs)
	}
}
