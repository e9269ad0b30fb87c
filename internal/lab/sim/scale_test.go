package sim_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// alone holds a cluster without its host to the bounds on detection, and has the node
// that it lost come back with the host.
func alone(t *testing.T, nodes int, seed uint64) {
	t.Helper()
	bound := scenario.Normal.Bound()
	p, err := sim.Alone(nodes, scenario.Normal, seed)
	if err != nil {
		t.Fatalf("%d nodes without a host: %v", nodes, err)
	}
	t.Logf("%+v", p)
	if p.Crash > bound.Crash || p.Silence > bound.Silence || p.Return > bound.Heal || p.False != 0 {
		t.Errorf("%d nodes without a host: %+v, want a crash known within %v, silence within %v, all back within %v, nobody else removed",
			nodes, p, bound.Crash, bound.Silence, bound.Heal)
	}
}

// TestOneOfManyWithoutAHost stops a node of seventy for 35 s while the host is away:
// all others know in time, and it comes back with the host.
func TestOneOfManyWithoutAHost(t *testing.T) {
	nodes := 20 // with the race detector
	if manyNodes {
		nodes = 70 // more than 64, and quick enough; `make chaos` has 100 and 200
	}
	alone(t, nodes, 1)
}

// TestScale holds clusters of growing size to the design: a crash is seen in well under
// a second, silence within the profile's bound, a storm of joins is over in seconds,
// and no other node is removed. With SIM_SCALE=all, as `make chaos` has it, up to 200
// nodes, and also without a host.
func TestScale(t *testing.T) {
	sizes := []int{8, 32, 63}
	if os.Getenv("SIM_SCALE") == "all" {
		sizes = append(sizes, 100, 200)
	}
	bound := scenario.Normal.Bound()
	var points []sim.ScalePoint
	for _, n := range sizes {
		p, err := sim.Scale(n, scenario.Normal, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", p)
		switch {
		case p.Join.Max > 5*time.Second:
			t.Errorf("%d nodes: join storm over after %v", n, p.Join.Max)
		case p.Crash.Max > bound.Crash/4:
			t.Errorf("%d nodes: a crash is known after %v", n, p.Crash.Max)
		case p.Silence.Max > bound.Silence:
			t.Errorf("%d nodes: silence is known after %v", n, p.Silence.Max)
		case p.False != 0:
			t.Errorf("%d nodes: %d removals of nodes that nothing was done to", n, p.False)
		}
		points = append(points, p)
		if n > 63 {
			alone(t, n, 1)
		}
	}
	d := xml.NewDecoder(strings.NewReader(string(sim.ScalePlot(points))))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the plot is not XML: %v", err)
		}
	}
}
