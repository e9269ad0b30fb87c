package check_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

var linearRuns = flag.Int("linear", 20, "how many histories of each table are checked for linearizability")

// A portOp is one call about a port.
type portOp struct {
	port  fabric.Port
	close bool
}

// portTable models the port table of a node, one port at a time: a bind succeeds exactly if the
// port is free, a close frees it.
var portTable = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		by := map[fabric.Port][]porcupine.Operation{}
		for _, op := range all {
			port := op.Input.(portOp).port
			by[port] = append(by[port], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		bound, in, ok := state.(bool), input.(portOp), output.(bool)
		if in.close {
			return bound, false
		}
		return ok != bound, bound || ok
	},
}

// TestPortTableIsLinearizable binds and closes the same few ports from many
// goroutines, while the other node of the cluster is lost and comes back (B16).
func TestPortTableIsLinearizable(t *testing.T) {
	for run := range *linearRuns {
		ops := portHistory(t, uint64(run))
		if got := porcupine.CheckOperationsTimeout(portTable, ops, time.Minute); got != porcupine.Ok {
			t.Fatalf("run %d: a history of %d calls is %s", run, len(ops), got)
		}
	}
}

// portHistory returns the operations on the ports of one node.
func portHistory(t *testing.T, seed uint64) []porcupine.Operation {
	c := fabrictest.NewCluster(t, 2)
	defer c.Close()
	start := time.Now()
	var mu sync.Mutex
	var all []porcupine.Operation
	add := func(client int, in portOp, out bool, call int64) {
		op := porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: int64(time.Since(start))}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, op)
	}
	var clients, trouble sync.WaitGroup
	done := make(chan struct{})
	trouble.Go(func() { // the ports of one node have nothing to do with another one
		for {
			select {
			case <-done:
				return
			default:
				c.Kill(1)
				c.Restart(1)
			}
		}
	})
	for client := range 6 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			node := c.App(0, false)
			for range 60 {
				bindOnce(t, node, rng, func(in portOp, out bool, call int64) { add(client, in, out, call) }, start)
			}
		})
	}
	clients.Wait()
	close(done)
	trouble.Wait()
	return all
}

// bindOnce binds an endpoint to one of a few ports, or to any, and closes it.
func bindOnce(t *testing.T, node *fabric.Node, rng *rand.Rand, add func(portOp, bool, int64), start time.Time) {
	ep, err := node.Open()
	if err != nil {
		t.Error(err)
		return
	}
	want := fabric.Port(0)
	if rng.IntN(4) > 0 {
		want = 2000 + fabric.Port(rng.IntN(3))
	}
	call := int64(time.Since(start))
	port, err := ep.Bind(want)
	switch {
	case err == nil:
		add(portOp{port: port}, true, call)
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.ENOSPC):
		if want == 0 {
			t.Errorf("no port is left: %v", err)
		}
		add(portOp{port: want}, false, call)
	default:
		t.Error(err)
	}
	bound := err == nil
	call = int64(time.Since(start))
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	if bound {
		add(portOp{port: port, close: true}, true, call)
	}
}

// A grant is a lease as a node heard of it.
type grant struct {
	uuid       addr.UUID
	generation addr.Generation
}

// leaseTable models the table of IDs, one ID at a time: it is free, or it belongs to one machine
// for as long as the quarantine lasts, which is longer than any run; each grant has a higher
// generation.
var leaseTable = porcupine.Model{
	Init: func() any { return grant{} },
	Step: func(state, _, output any) (bool, any) {
		old, got := state.(grant), output.(grant)
		return (old.uuid.IsZero() || old.uuid == got.uuid) && got.generation > old.generation, got
	},
}

// TestLeaseTableIsLinearizable takes the grants of simulated clusters in which
// machines come and go, and the host as well (B16).
func TestLeaseTableIsLinearizable(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/scenarios/join-storm-small.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := scenario.Decode("join-storm-small.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	s.Timeline = append(s.Timeline, scenario.Step{At: scenario.Span{From: 1e9, To: 5e9, Set: true},
		Do: scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(0), Do: scenario.Kill, For: scenario.At(3e8)}}})
	for run := range *linearRuns {
		out, err := sim.Run(s.Resolve(uint64(run)), sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for id, ops := range grants(out.History) {
			count += len(ops)
			if got := porcupine.CheckOperationsTimeout(leaseTable, ops, time.Minute); got != porcupine.Ok {
				t.Fatalf("seed %d: the grants of ID %d are %s: %+v", run, id, got, ops)
			}
		}
		if count < 15 {
			t.Errorf("seed %d: found %d grants", run, count)
		}
	}
}

// grants returns the grants of each ID: begun when the daemon was started, or
// had its last incarnation, and over when it said that it has the next.
func grants(records []history.Record) map[addr.NodeID][]porcupine.Operation {
	asked := map[int]int64{}
	last := map[int]addr.Incarnation{}
	all := map[addr.NodeID][]porcupine.Operation{}
	for _, r := range records {
		switch b := r.Body.(type) {
		case *history.Process:
			if b.Target.Role == history.RoleDaemon && b.Did == history.DidStart {
				asked[b.Target.Node] = r.At
			}
		case *history.Event:
			node := r.Source.Node
			if b.What != history.EventSelf || last[node] == b.Subject || b.UUID.IsZero() {
				continue
			}
			last[node] = b.Subject
			all[b.Subject.Node] = append(all[b.Subject.Node], porcupine.Operation{ClientId: node, Output: grant{b.UUID, b.Subject.Generation}, Call: asked[node], Return: r.At})
			asked[node] = r.At
		}
	}
	return all
}

func TestModelsOfTablesFindFaults(t *testing.T) {
	bind := func(call, back int64, ok bool) porcupine.Operation {
		return porcupine.Operation{Input: portOp{port: 1}, Output: ok, Call: call, Return: back}
	}
	for name, ops := range map[string][]porcupine.Operation{
		"a port is bound twice":       {bind(1, 2, true), bind(3, 4, true)},
		"a free port is refused":      {bind(1, 2, false)},
		"a port that is not bound":    {{Input: portOp{port: 1, close: true}, Output: true, Call: 1, Return: 2}},
		"bound again before its time": {bind(1, 2, true), {Input: portOp{port: 1, close: true}, Output: true, Call: 9, Return: 10}, bind(3, 4, true)},
	} {
		if porcupine.CheckOperations(portTable, ops) {
			t.Errorf("%s: fine", name)
		}
	}
	for name, ops := range map[string][]porcupine.Operation{
		"an ID changes hands":                {{Output: grant{addr.UUID{1}, 1}, Call: 1, Return: 2}, {Output: grant{addr.UUID{2}, 2}, Call: 3, Return: 4}},
		"a generation is used again":         {{Output: grant{addr.UUID{1}, 1}, Call: 1, Return: 2}, {Output: grant{addr.UUID{1}, 1}, Call: 3, Return: 4}},
		"a generation goes back":             {{Output: grant{addr.UUID{1}, 5}, Call: 1, Return: 2}, {Output: grant{addr.UUID{1}, 4}, Call: 3, Return: 4}},
		"two at once, reported in any order": {{Output: grant{addr.UUID{1}, 1}, Call: 1, Return: 9}, {Output: grant{addr.UUID{2}, 1}, Call: 2, Return: 8}},
	} {
		if porcupine.CheckOperations(leaseTable, ops) {
			t.Errorf("%s: fine", name)
		}
	}
}
