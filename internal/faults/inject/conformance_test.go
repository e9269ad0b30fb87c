package inject

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = faults.Duration(time.Millisecond)

var (
	idA = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{2}, Host: true}
	idB = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{3}}
)

// layer returns a Layer of node id, which knows nodes 1 and 2 by the identities
// and addresses of the tests, with rules.
func layer(t testing.TB, id addr.NodeID, rules ...faults.Rule) *Layer {
	t.Helper()
	p := faults.NewPlane(faults.Options{Seed: uint64(id)})
	p.SetSelf(id)
	for i, node := range []addr.UUID{idA.Node, idB.Node} {
		p.Names.SetID(node, addr.NodeID(i+1))
	}
	p.Names.SetPlace(idA.Node, "a")
	p.Names.SetPlace(idB.Node, "b")
	if len(rules) > 0 {
		if _, err := p.AddAll(rules); err != nil {
			t.Fatal(err)
		}
	}
	l := New(p)
	t.Cleanup(l.Close)
	return l
}

// memPair returns two providers of a hub, each below a Layer with rules.
func memPair(t testing.TB, cfg mem.Config, rules ...faults.Rule) (la, lb *Layer, a, b transport.Provider) {
	t.Helper()
	h := mem.NewHub(cfg)
	pa, err := h.Provider("a", idA)
	if err != nil {
		t.Fatal(err)
	}
	pb, err := h.Provider("b", idB)
	if err != nil {
		t.Fatal(err)
	}
	la, lb = layer(t, 1, rules...), layer(t, 2, rules...)
	return la, lb, la.Provider(pa, false), lb.Provider(pb, false)
}

// TestConformance holds a wrapped provider to the contract of every provider:
// without rules, with rules that are for others, and with rules that only slow
// it down.
func TestConformance(t *testing.T) {
	for name, rules := range map[string][]faults.Rule{
		"no rules":          nil,
		"rules for others":  {{On: faults.All, From: faults.Nodes{7}, Cut: true}, {On: faults.Link, Drop: 1, Delay: ms, To: faults.Nodes{9}}},
		"delay":             {{On: faults.Link, Delay: 2 * ms, At: faults.AtFrom}},
		"delay at both":     {{On: faults.All, Delay: ms, Jitter: 2 * ms}},
		"delay at receiver": {{On: faults.All, Delay: ms, Jitter: 2 * ms, At: faults.AtTo}},
		"streams":           {{On: faults.Messages, Delay: ms}, {On: faults.RMA, Jitter: ms}},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T) transporttest.Pair {
				_, _, a, b := memPair(t, mem.Config{MaxStreams: 16}, rules...)
				return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: 16, Nowhere: "c"}
			})
		})
	}
}

// Faults are none of a provider's attributes.
func TestAttributesAreThoseBelow(t *testing.T) {
	_, _, a, b := memPair(t, mem.Config{})
	defer a.Close()
	defer b.Close()
	if got := a.Attributes(); got != (&mem.Provider{}).Attributes() {
		t.Errorf("attributes %+v", got)
	}
}
