package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// The times of a random scenario: faults begin in its first part, all of them
// end in time for the cluster to heal.
const (
	randomFaults = 12 * time.Second
	randomLength = 25 * time.Second
	longestFault = 5 * time.Second
)

// Random returns a scenario with random faults of every kind that the
// simulation has, on a cluster of three to seven nodes. The same seed gives the
// same scenario. It expects that everything is well again in the end.
func Random(seed uint64) *scenario.Scenario {
	g := &generator{rng: seeded(seed, "random")}
	g.nodes = 3 + g.rng.IntN(5)
	g.s = &scenario.Scenario{
		Version: scenario.Version, Name: scenario.Name(fmt.Sprintf("random-%d", seed)), On: []scenario.Lab{scenario.Sim},
		Cluster:  scenario.Cluster{Nodes: g.nodes, Detection: []scenario.Detection{scenario.Fast, scenario.Normal}[g.rng.IntN(2)]},
		Duration: scenario.Duration(randomLength),
		Workload: g.workload(),
	}
	g.s.Workload.Windows = int(seed%3) * 3
	for range 2 + g.rng.IntN(8) {
		g.fault()
	}
	// A host whose disk fails does not start: this action starts it again.
	g.add(scenario.At(scenario.Duration(randomFaults+longestFault+2*time.Second)),
		scenario.Do{Node: &scenario.Node{ID: scenario.NodeSet{{Name: scenario.SetAll}}, Do: scenario.Start}})
	within := scenario.Duration(5 * time.Second)
	g.s.Expect = []scenario.Expect{
		{Mesh: &scenario.ExpectMesh{Within: within, After: scenario.AfterLast}},
		{Connects: &scenario.ExpectConnects{Within: within, After: scenario.AfterLast}},
	}
	return g.checked()
}

// A generator makes one random scenario.
type generator struct {
	rng   *rand.Rand
	nodes int
	s     *scenario.Scenario
}

func (g *generator) workload() scenario.Workload {
	pairs := scenario.Pairs{Shape: []string{"mesh", "ring", "star"}[g.rng.IntN(3)]}
	return scenario.Workload{
		Pairs:    pairs,
		Messages: &scenario.Messages{Size: scenario.SizeRange{From: 1, To: scenario.Size(1 + g.rng.IntN(8<<10))}, Rate: 20 + g.rng.IntN(60)},
		RMA: &scenario.RMA{Size: scenario.SizeRange{From: 8, To: scenario.Size(8 + g.rng.IntN(16<<10))}, Rate: 20 + g.rng.IntN(60),
			Window: 64 << 10, Reads: scenario.Percent(g.rng.IntN(50)), Fence: 1 + g.rng.IntN(12), Signal: 1 + g.rng.IntN(20)},
		Connects: 1 + g.rng.IntN(4),
		Waiters:  g.rng.IntN(2) == 0,
	}
}

// when returns a moment for a fault to begin.
func (g *generator) when() scenario.Span {
	return scenario.At(scenario.Duration(between(g.rng, time.Second, randomFaults).Truncate(time.Millisecond)))
}

// long returns how long a fault lasts: often short, sometimes right at the
// bounds of detection.
func (g *generator) long() scenario.Span {
	d := between(g.rng, 5*time.Millisecond, longestFault)
	switch g.rng.IntN(3) {
	case 0:
		d = between(g.rng, 5*time.Millisecond, 400*time.Millisecond)
	case 1:
		d = between(g.rng, 800*time.Millisecond, 2200*time.Millisecond)
	}
	return scenario.At(scenario.Duration(d.Truncate(time.Millisecond)))
}

func (g *generator) index() int { return g.rng.IntN(g.nodes) }

// some returns a random set of nodes that is neither empty nor all.
func (g *generator) some() []int {
	all := g.rng.Perm(g.nodes)
	return all[:1+g.rng.IntN(g.nodes-1)]
}

func (g *generator) add(at scenario.Span, do scenario.Do) {
	g.s.Timeline = append(g.s.Timeline, scenario.Step{At: at, Do: do})
}

// fault adds one fault, or several that belong together.
func (g *generator) fault() {
	at := g.when()
	switch g.rng.IntN(14) {
	case 0, 1:
		g.node(at, scenario.Kill)
	case 2, 3:
		g.node(at, scenario.Stop)
	case 4:
		g.node(at, scenario.Terminate)
	case 5:
		if id := g.index(); id != 0 {
			g.add(at, scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(id), Do: scenario.Replace, For: g.long()}})
		}
	case 6:
		g.app(at)
	case 7, 8:
		g.link(at)
	case 9:
		g.partition(at)
	case 10:
		g.add(at, scenario.Do{Network: &scenario.Network{Node: scenario.NodesOf(g.index()), Do: scenario.Disconnect, For: g.long()}})
	case 11:
		g.swizzle(at)
	case 12:
		g.crash(at)
	case 13:
		g.disk(at)
	}
}

func (g *generator) node(at scenario.Span, do scenario.NodeDo) {
	ids := []int{g.index()}
	if g.rng.IntN(8) == 0 {
		ids = g.some()
	}
	if do == scenario.Stop && g.rng.IntN(8) == 0 {
		ids = nil // all nodes
		for id := range g.nodes {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	g.add(at, scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(ids...), Do: do, For: g.long()}})
}

func (g *generator) app(at scenario.Span) {
	x := &scenario.App{Node: scenario.NodesOf(g.index()), For: g.long()}
	switch g.rng.IntN(4) {
	case 0:
		x.Do = scenario.AppKill
	case 1:
		x.Do = scenario.AppStop
	case 2:
		x.Do, x.Rate = scenario.AppSlow, 1+g.rng.IntN(20)
	case 3:
		x.Do, x.For = scenario.AppClose, scenario.Span{}
	}
	g.add(at, scenario.Do{App: x})
}

// link generates a fault on the traffic from some nodes to others.
func (g *generator) link(at scenario.Span) {
	from := g.some()
	var to []int
	for id := range g.nodes {
		if !slices.Contains(from, id) && (len(to) == 0 || g.rng.IntN(2) == 0) {
			to = append(to, id)
		}
	}
	slices.Sort(from)
	l := &scenario.Link{From: scenario.NodesOf(from...), To: scenario.NodesOf(to...), Both: g.rng.IntN(2) == 0, For: g.long()}
	ms := func(n int) scenario.Duration {
		return scenario.Duration(time.Duration(1+g.rng.IntN(n)) * time.Millisecond)
	}
	switch g.rng.IntN(6) {
	case 0:
		l.Cut = true
	case 1:
		l.Cut = true
		l.Up, l.Down = ms(300), ms(300)
	case 2:
		l.Reset = true
	case 3:
		l.Drop = scenario.Percent(1 + g.rng.IntN(30))
	case 4:
		l.Delay, l.Jitter = ms(60), ms(30)
		l.Reorder, l.Duplicate = scenario.Percent(g.rng.IntN(30)), scenario.Percent(g.rng.IntN(20))
	case 5:
		l.Corrupt, l.Drop = scenario.Percent(1+g.rng.IntN(10)), scenario.Percent(1+g.rng.IntN(10))
		l.Rate = scenario.Rate(125_000 + g.rng.IntN(2_000_000))
	}
	g.add(at, scenario.Do{Link: l})
}

func (g *generator) partition(at scenario.Span) {
	a := g.some()
	var b []int
	for id := range g.nodes {
		if !slices.Contains(a, id) {
			b = append(b, id)
		}
	}
	slices.Sort(a)
	p := &scenario.Partition{Groups: scenario.Groups{scenario.NodesOf(a...), scenario.NodesOf(b...)}, For: g.long()}
	if g.rng.IntN(3) == 0 {
		p.Way = "asymmetric"
	}
	g.add(at, scenario.Do{Partition: p})
}

// swizzle clogs random nodes one by one and lets them go in another order.
func (g *generator) swizzle(at scenario.Span) {
	begin := at.From
	ids := g.some()
	end := begin + scenario.Duration(len(ids))*scenario.Duration(300*time.Millisecond)
	for _, id := range ids {
		begin += scenario.Duration(between(g.rng, 0, 300*time.Millisecond).Truncate(time.Millisecond))
		last := end + scenario.Duration(between(g.rng, 0, 2*time.Second).Truncate(time.Millisecond))
		g.add(scenario.At(begin), scenario.Do{Network: &scenario.Network{Node: scenario.NodesOf(id), Do: scenario.Disconnect, For: scenario.At(last - begin)}})
	}
}

// crash arms a crash at a random step of the protocol that a run may meet.
func (g *generator) crash(at scenario.Span) {
	steps := slices.DeleteFunc(failpoint.Steps(), func(s failpoint.StepInfo) bool {
		switch s.Step {
		case failpoint.JoinAsked, failpoint.JoinAnswered, failpoint.TokenRedeemed, failpoint.TokenStored,
			failpoint.FileBegun, failpoint.FileWritten, failpoint.FileSynced, failpoint.FileRenamed:
			return true // the simulation does not have these
		}
		return false
	})
	g.add(at, scenario.Do{Fault: &scenario.Fault{Node: scenario.NodesOf(g.index()), Kind: scenario.FaultCrash,
		Step: scenario.StepName(steps[g.rng.IntN(len(steps))].Name), Nth: 1 + g.rng.IntN(20),
		Within: scenario.Duration(3 * time.Second), Restart: g.long().From}})
}

func (g *generator) disk(at scenario.Span) {
	f := &scenario.Fault{Node: scenario.NodesOf(0), Kind: scenario.FaultDisk, For: g.long()}
	switch g.rng.IntN(3) {
	case 0:
		f.Disk = "full"
	case 1:
		f.Disk = "sync"
	case 2:
		f.Disk, f.Delay = "slow", scenario.Duration(time.Duration(1+g.rng.IntN(200))*time.Millisecond)
	}
	g.add(at, scenario.Do{Fault: f})
}

// Zombies returns a scenario in which nodes stand still in the middle of remote
// memory operations for long enough to be removed, while others are killed and
// come back with a new incarnation: nothing of an old incarnation may land anywhere. It has
// five such nodes.
func Zombies(seed uint64) *scenario.Scenario {
	g := &generator{rng: seeded(seed, "zombies"), nodes: 3}
	g.s = g.base("zombies", seed, 24*time.Second)
	for i := range 5 {
		at := scenario.Duration(time.Second + time.Duration(i)*4*time.Second)
		moment := scenario.Duration(between(g.rng, 0, time.Second).Truncate(time.Microsecond))
		long := scenario.At(scenario.Duration(between(g.rng, 1800*time.Millisecond, 2800*time.Millisecond).Truncate(time.Millisecond)))
		zombie := g.index()
		g.add(scenario.At(at+moment), scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(zombie), Do: scenario.Stop, For: long}})
		if other := g.index(); other != zombie {
			g.add(scenario.At(at+moment+scenario.Duration(between(g.rng, 0, 2*time.Second).Truncate(time.Millisecond))),
				scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(other), Do: scenario.Kill, For: scenario.At(scenario.Duration(50 * time.Millisecond))}})
		}
	}
	return g.checked()
}

// Cuts returns a scenario in which connections are cut, reset or lost at ten
// random points of fences and signals.
func Cuts(seed uint64) *scenario.Scenario {
	g := &generator{rng: seeded(seed, "cuts"), nodes: 3}
	g.s = g.base("cuts", seed, 22*time.Second)
	g.s.Workload.RMA.Fence, g.s.Workload.RMA.Signal = 1+g.rng.IntN(3), 1+g.rng.IntN(3)
	for i := range 10 {
		at := scenario.At(scenario.Duration(time.Second+time.Duration(i)*1500*time.Millisecond) +
			scenario.Duration(between(g.rng, 0, 1500*time.Millisecond).Truncate(time.Microsecond)))
		from, to := i%3, (i+1)%3
		switch g.rng.IntN(4) {
		case 0:
			g.add(at, scenario.Do{Link: &scenario.Link{From: scenario.NodesOf(from), To: scenario.NodesOf(to), Reset: true, For: scenario.At(scenario.Duration(time.Millisecond))}})
		case 1:
			g.add(at, scenario.Do{Link: &scenario.Link{From: scenario.NodesOf(from), To: scenario.NodesOf(to), Cut: true, Both: g.rng.IntN(2) == 0,
				For: scenario.At(scenario.Duration(between(g.rng, 2*time.Second, 3*time.Second).Truncate(time.Millisecond)))}})
		case 2:
			g.add(at, scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(1 + g.rng.IntN(2)), Do: scenario.Kill, For: scenario.At(scenario.Duration(200 * time.Millisecond))}})
		case 3:
			g.add(at, scenario.Do{App: &scenario.App{Node: scenario.NodesOf(from), Do: scenario.AppKill, For: scenario.At(scenario.Duration(100 * time.Millisecond))}})
		}
	}
	return g.checked()
}

// base is a small cluster whose applications do remote memory operations.
func (g *generator) base(name string, seed uint64, length time.Duration) *scenario.Scenario {
	return &scenario.Scenario{
		Version: scenario.Version, Name: scenario.Name(fmt.Sprintf("%s-%d", name, seed)), On: []scenario.Lab{scenario.Sim},
		Cluster:  scenario.Cluster{Nodes: g.nodes, Detection: scenario.Fast},
		Duration: scenario.Duration(length),
		Workload: scenario.Workload{Pairs: scenario.Pairs{Shape: "mesh"},
			RMA: &scenario.RMA{Size: scenario.SizeRange{From: 8, To: scenario.Size(64 + g.rng.IntN(2<<10))}, Rate: 100,
				Window: 32 << 10, Reads: scenario.Percent(g.rng.IntN(40)), Fence: 1 + g.rng.IntN(8), Signal: 1 + g.rng.IntN(8)}},
	}
}

func (g *generator) checked() *scenario.Scenario {
	if err := g.s.Check(); err != nil {
		panic("BUG: sim: a random scenario is none: " + err.Error())
	}
	return g.s
}
