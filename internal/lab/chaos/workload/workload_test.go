package workload

import (
	"bytes"
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestApplicationsTalk lets three applications talk in one process and reads their
// logs. RMA has no place here: in one process it is a data race by design; the labs
// have it.
func TestApplicationsTalk(t *testing.T) {
	const nodes = 3
	c := fabrictest.NewCluster(t, nodes)
	zero, err := Monotonic()
	if err != nil {
		t.Fatal(err)
	}
	clock, err := NewClock(zero)
	if err != nil {
		t.Fatal(err)
	}
	live := func(context.Context) (all []history.Member, err error) {
		for i := range nodes {
			all = append(all, history.Member{Incarnation: c.Node(i).Incarnation()})
		}
		return all, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	logs := make([]bytes.Buffer, nodes)
	for i := range nodes {
		cfg := Config{Node: i, Run: 1, Seed: 7, Plan: plan()}
		for j := range nodes {
			if j != i {
				cfg.Peers = append(cfg.Peers, Peer{Node: j, Client: i < j})
			}
		}
		a := newApp(cfg, NewLog(&logs[i], history.App(i, 1), clock))
		a.incarnations = live
		s := newSession(a, c.App(i, false))
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	for i := range logs {
		seen := readLog(t, &logs[i])
		if seen["opened"] < 6 || seen["received"] < 5 || seen["sent"] < 5 || seen["view"] != 1 ||
			seen["closed"] != seen["opened"] {
			t.Errorf("application %d wrote %v", i, seen)
		}
	}
}

// plan is the workload of the applications of a test.
func plan() load.Plan {
	return load.PlanOf(&scenario.Workload{Messages: &scenario.Messages{Size: scenario.SizeRange{From: 64, To: 4096}, Rate: 200}, Connects: 5, Waiters: true})
}

// readLog counts the records of a log by kind and fails t for bad bytes, calls
// that did not return, and connections that failed.
func readLog(t *testing.T, log *bytes.Buffer) map[history.Kind]int {
	t.Helper()
	records, err := history.Read(log, "log")
	if err != nil {
		t.Fatal(err)
	}
	kinds, open := map[history.Kind]int{}, map[uint64]string{}
	for _, r := range records {
		kinds[r.Kind()]++
		switch b := r.Body.(type) {
		case *history.Received:
			if b.Bad != nil {
				t.Errorf("%v: bad bytes at %d", b.ConnEnd, *b.Bad)
			}
		case *history.Call:
			open[b.ID] = b.Name
		case *history.Return:
			delete(open, b.ID)
		case *history.Opened:
			if b.Local.Generation != 1 || b.Remote.Generation != 1 || b.Local == (fabric.Incarnation{}) {
				t.Errorf("%v: between %v and %v", b.ConnEnd, b.Local, b.Remote)
			}
		}
	}
	for id, name := range open {
		t.Errorf("call %d, %s, has not returned", id, name)
	}
	return kinds
}

// TestHeldCountsDescriptors opens a file, which is one descriptor more and no shared memory.
func TestHeldCountsDescriptors(t *testing.T) {
	before := Held("self")
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	after := Held("self")
	if after["fds"] != before["fds"]+1 || after["memfds"] != before["memfds"] || after["rss"] < 1<<20 {
		t.Errorf("with one file more open it holds %v, before %v", after, before)
	}
	if none := Held("0"); len(none) != 0 {
		t.Errorf("no process holds %v", none)
	}
}
