package conformance

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
)

var (
	programSeed  = flag.Uint64("program-seed", 1, "the seed of the first program of TestSameProgramSameTrace; 0: chosen at random, and printed")
	programCount = flag.Int("programs", 12, "how many programs TestSameProgramSameTrace runs")
)

// programLength is the number of steps of one program.
const programLength = 120

// A stage is where programs run: two applications.
type stage struct {
	name      string
	opts      []fabrictest.Option
	near, far entrance
	nearNode  int
	farNode   int
	serving   server.Options
	// via is the transport that connections of the two move to before a
	// program goes on with them.
	via string
	// maps says that each of the two can map all memory of the other.
	maps bool
}

// A started is a stage whose cluster runs.
type started struct {
	apps [2]*fabric.Node
	site *sockets
	// rings are where connections go over to a shared-memory path or a path between nodes; nil:
	// none is to.
	rings *rings
}

// An entrance is an API mode of a node: embedded or attached.
type entrance func(cluster *fabrictest.Cluster, attached *sockets, node int) *fabric.Node

func throughEngine(c *fabrictest.Cluster, _ *sockets, node int) *fabric.Node {
	return c.App(node, true)
}

func throughSocket(_ *fabrictest.Cluster, s *sockets, node int) *fabric.Node {
	return s.App(node, true)
}

var (
	quic  = []fabrictest.Option{fabrictest.QUIC()}
	tcp   = []fabrictest.Option{fabrictest.TCP()}
	bare  = []fabrictest.Option{fabrictest.TCPPlaintext()}
	mixed = []fabrictest.Option{fabrictest.Mixed()}
	alone = []fabrictest.Option{fabrictest.TCP(), fabrictest.Unbroken()}
)

// stages are all of them. Results of programs are compared with the first. Of mixed
// providers the node that dials decides, which is the same side of a program
// everywhere: swapped nodes have the other provider's link.
var stages = []stage{
	{name: "embedded, across nodes, mem", near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across nodes, quic", opts: quic, near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across nodes, tcp", opts: tcp, near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across nodes, tcp plaintext", opts: bare, near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across nodes, tcp, nothing between", opts: alone, near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across nodes, mixed", opts: mixed, near: throughEngine, far: throughEngine, farNode: 1},
	{name: "embedded, across swapped nodes, mixed", opts: mixed, near: throughEngine, far: throughEngine, nearNode: 1},
	{name: "embedded, same node", near: throughEngine, far: throughEngine, maps: true},
	{name: "attached, across nodes, mem", near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached, across nodes, quic", opts: quic, near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached, across nodes, tcp", opts: tcp, near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached, across nodes, tcp plaintext", opts: bare, near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached, across nodes, tcp, nothing between", opts: alone, near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached, across nodes, mixed", opts: mixed, near: throughSocket, far: throughSocket, farNode: 1},
	{name: "attached to embedded, across swapped nodes, mixed", opts: mixed, near: throughSocket, far: throughEngine, nearNode: 1},
	{name: "attached, same node", near: throughSocket, far: throughSocket, via: attach.ViaShmPath, maps: true},
	{name: "attached, same node, without shared memory", near: throughSocket, far: throughSocket, maps: true,
		serving: server.Options{NoDirect: true, NoShmPaths: "this stage has none"}},
	{name: "attached, across nodes, paths", opts: []fabrictest.Option{fabrictest.QUIC(), fabrictest.Paths()}, near: throughSocket, far: throughSocket, via: attach.ViaPath, farNode: 1},
	{name: "attached to embedded, across nodes, mem", near: throughSocket, far: throughEngine, farNode: 1},
	{name: "embedded to attached, across nodes, quic", opts: quic, near: throughEngine, far: throughSocket, farNode: 1},
	{name: "attached to embedded, same node", near: throughSocket, far: throughEngine},
	{name: "embedded to attached, same node", near: throughEngine, far: throughSocket},
}

// start starts a stage's cluster, which ends with t.
func (g stage) start(t *testing.T) started {
	s := attachedWith(g.serving, g.opts...)(t, 0).(*sockets)
	out := started{apps: [2]*fabric.Node{g.near(s.cluster, s, g.nearNode), g.far(s.cluster, s, g.farNode)}, site: s}
	if g.via != "" {
		out.rings = &rings{s, g.via}
	}
	return out
}

// traceOf runs a program on a stage.
func traceOf(t *testing.T, on started, program []step) []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := &programRun{ctx: ctx, apps: on.apps}
	if on.rings != nil {
		r.goOver = func(ctx context.Context, a, b *fabric.Endpoint) error { return on.rings.Ready(ctx, a, b) }
	}
	trace := r.run(program)
	if r.err != nil {
		t.Errorf("step %d does not end: %v; the last steps:\n%s", r.n, r.err, strings.Join(trace[max(0, len(trace)-5):], "\n"))
	}
	return trace
}

// TestSameProgramSameTrace runs random programs of calls, right and wrong ones,
// in every API mode, over every provider and on one node: the visible results,
// errors, bytes and events are the same everywhere.
func TestSameProgramSameTrace(t *testing.T) { sameTraces(t, stages, programSteps) }

// TestSameMappedProgramSameTrace is the same for programs that map each other's
// memory too, which one node allows.
func TestSameMappedProgramSameTrace(t *testing.T) {
	local := slices.DeleteFunc(slices.Clone(stages), func(g stage) bool { return !g.maps })
	sameTraces(t, local, slices.Concat(programSteps, mappingSteps))
}

// sameTraces compares the traces of programs out of steps on all of stages.
func sameTraces(t *testing.T, stages []stage, steps []programStep) {
	seed := *programSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-program-seed %d", seed)
	var on []started
	for _, g := range stages {
		on = append(on, g.start(t))
	}
	begun := time.Now()
	done := map[string]int{}
	for i := range *programCount {
		program := newProgram(rand.New(rand.NewPCG(seed+uint64(i), 0)), programLength, steps)
		want := traceOf(t, on[0], program)
		for _, line := range want {
			done[kindOf(line)]++
		}
		for g := 1; g < len(stages); g++ {
			if got := traceOf(t, on[g], program); !slices.Equal(got, want) {
				t.Errorf("-program-seed %d -programs 1: %s", seed+uint64(i), stages[g].name)
				compare(t, want, got)
				explain(t, on[0], on[g], program)
				return
			}
		}
	}
	for g, s := range on {
		if s.rings == nil {
			continue
		}
		if n := s.rings.count(s.rings.via).Load(); n < int64(*programCount) {
			t.Errorf("%s: only %d ends have gone over to a %s", stages[g].name, n, s.rings.via)
		}
	}
	t.Logf("%d programs of %d steps on %d stages in %v: %v", *programCount, programLength, len(stages), time.Since(begun), done)
}

// kindOf returns the call of a line of a trace, and how it ended.
func kindOf(line string) string {
	name, rest, _ := strings.Cut(line, " ")
	if strings.Contains(rest, "ok") {
		return name + " ok"
	}
	return name + " fails"
}

// explain removes the steps of a program that its difference does not need, if it comes
// again, and prints the rest with both traces.
func explain(t *testing.T, first, second started, program []step) {
	t.Helper()
	differs := func(p []step) bool { return !slices.Equal(traceOf(t, first, p), traceOf(t, second, p)) }
	for size := len(program) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(program); {
			shorter := slices.Delete(slices.Clone(program), at, at+size)
			if differs(shorter) {
				program = shorter
			} else {
				at += size
			}
		}
	}
	compare(t, traceOf(t, first, program), traceOf(t, second, program))
}

// compare prints two traces.
func compare(t *testing.T, want, got []string) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		line := func(trace []string) string {
			if i < len(trace) {
				return trace[i]
			}
			return "(nothing)"
		}
		if line(want) == line(got) {
			t.Logf("%3d %s", i, line(want))
		} else {
			t.Logf("%3d first %s", i, line(want))
			t.Logf("%3d here  %s", i, line(got))
		}
	}
}

// TestProgramsThatDifferAreFound compares traces of programs of which one has
// another step, and checks the calls that a long program reaches.
func TestProgramsThatDifferAreFound(t *testing.T) {
	apps := stages[0].start(t)
	program := newProgram(rand.New(rand.NewPCG(1, 0)), 10*programLength, programSteps)
	want := traceOf(t, apps, program)
	if got := traceOf(t, apps, program); !slices.Equal(got, want) {
		t.Errorf("the same program on the same stage differs:\n%s\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
	done := map[string]int{}
	for _, line := range want {
		done[kindOf(line)]++
	}
	for _, kind := range []string{"meet ok", "transfer ok", "transfer fails", "atomic ok", "post ok", "put ok", "recv ok", "close ok"} {
		if done[kind] == 0 {
			t.Errorf("a program of %d steps has no %q: %v", len(program), kind, done)
		}
	}
	if got := traceOf(t, apps, program[1:]); slices.Equal(got, want) {
		t.Error("a program with another step has the same trace")
	}
}
