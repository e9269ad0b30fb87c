package main

import (
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// Nodes that are left alone beside hogs are watched.
func TestCalmNodesAreWatchedBesideHogs(t *testing.T) {
	temporaries(t)
	d := document(t, "run", falseTest, "--fabricd", buildFabricd(t), "--nodes", "2", "--reps", "1", "--hogs", "1", "--duration", "200ms", "--detection", "calm")
	if len(d.Calms) != 1 || len(d.Results) != 1 || len(d.Checks) != 1 || d.Calms[0].Seconds < 0.2 {
		t.Fatalf("calms %+v, %d rows, %d checks; want 1 of each", d.Calms, len(d.Results), len(d.Checks))
	}
}

// What was removed without cause is counted once for each that saw it.
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
}

// carriedAll fails unless all rows say the same carrier.
func carriedAll(t *testing.T, d *Document, want string) {
	t.Helper()
	for _, r := range d.Results {
		if !isAnchorName(r.Provider) && (r.Provider != want || r.Security != "tls1.3") {
			t.Errorf("%s is over %s with %s, want %s", r.Test, r.Provider, r.Security, want)
		}
	}
}
