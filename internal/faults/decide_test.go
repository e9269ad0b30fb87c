package faults

import (
	"math"
	"reflect"
	"testing"
	"time"

	"net/netip"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func genWay(t *rapid.T) Way {
	return Way{
		From: addr.NodeID(rapid.Uint16Range(0, 9).Draw(t, "from")), To: addr.NodeID(rapid.Uint16Range(0, 9).Draw(t, "to")),
		On:      rapid.SampledFrom([]Traffic{Gossip, Control, Messages, RMA, Link}).Draw(t, "traffic"),
		Carrier: rapid.SampledFrom([]Carrier{Packets, Stream}).Draw(t, "carrier"),
	}
}

// decideAll is the decision about size bytes under rules that all cover w, in this order.
func decideAll(rules []Seen, w Way, size int) Decision {
	var total Decision
	for i := range rules {
		total = total.Then(rules[i].Decide(w, size))
		if total.Drop {
			break
		}
	}
	return total
}

// TestDecideIsAFunction decides twice, with the state of the rate as it was.
func TestDecideIsAFunction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, size := genWay(t), rapid.IntRange(1, 1500).Draw(t, "size")
		var a, b []Seen
		for range rapid.IntRange(0, 4).Draw(t, "rules") {
			r := genRule(t)
			s := Seen{Rule: &r, Seed: rapid.Uint64Min(1).Draw(t, "seed"), N: rapid.Uint64().Draw(t, "n"),
				Age: time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "age")), Meter: &Meter{}}
			a = append(a, s)
			s.Meter = &Meter{}
			b = append(b, s)
		}
		x, y := decideAll(a, w, size), decideAll(b, w, size)
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("once %+v, then %+v", x, y)
		}
		if x.Drop && w.Carrier == Stream {
			t.Fatalf("a piece of a stream is dropped: %+v", x)
		}
		if x.Delay < 0 || x.Later < 0 || x.Corrupt && x.Mask == 0 {
			t.Fatalf("impossible decision %+v", x)
		}
		if reflect.DeepEqual(x, Decision{}) != (x.Effects == 0) {
			t.Fatalf("decision %+v and its effects do not agree", x)
		}
	})
}

// TestOneRuleDoesNotShiftAnother: a rule's decision on the n-th packet depends on that rule, its
// seed, the direction and n alone.
func TestOneRuleDoesNotShiftAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWay(t)
		w.Carrier = Packets
		seed := rapid.Uint64Min(1).Draw(t, "seed")
		plain := Rule{On: All, Drop: .3}
		with := Rule{On: All, Drop: .3, Duplicate: .5, Jitter: 10 * ms, Corrupt: .5, Reorder: .5}
		for n := range uint64(64) {
			a := (&Seen{Rule: &plain, Seed: seed, N: n}).Decide(w, 100)
			b := (&Seen{Rule: &with, Seed: seed, N: n}).Decide(w, 100)
			if a.Drop != b.Drop {
				t.Fatalf("packet %d: another fault of the rule changes whether it is dropped", n)
			}
		}
	})
}

// TestProbabilitiesHold counts over many packets. The bound is five standard
// deviations, and the seeds are fixed: it does not fail by chance.
func TestProbabilitiesHold(t *testing.T) {
	const packets = 20000
	for _, p := range []Probability{0, .01, .2, .5, 1} {
		r := Rule{On: Link, Drop: p}
		r2 := Rule{On: Link, Duplicate: p, Reorder: p, Corrupt: p}
		for seed := range uint64(4) {
			for _, w := range []Way{{1, 2, Link, Packets}, {2, 1, Link, Packets}} {
				var dropped, twice, reordered, corrupted int
				for n := range uint64(packets) {
					if (&Seen{Rule: &r, Seed: seed + 1, N: n}).Decide(w, 99).Drop {
						dropped++
					}
					f := (&Seen{Rule: &r2, Seed: seed + 1, N: n}).Decide(w, 99)
					if f.Twice {
						twice++
					}
					if f.Effects&Reordered != 0 {
						reordered++
					}
					if f.Corrupt {
						corrupted++
					}
				}
				bound := 5 * math.Sqrt(packets*float64(p)*(1-float64(p)))
				for what, got := range map[string]int{"dropped": dropped, "duplicated": twice, "reordered": reordered, "corrupted": corrupted} {
					if math.Abs(float64(got)-packets*float64(p)) > bound {
						t.Errorf("%s %d of %d at %v, seed %d, %v", what, got, packets, p, seed, w)
					}
				}
			}
		}
	}
}

// TestDirectionsAndSeedsAreIndependent wants half of the decisions to differ.
func TestDirectionsAndSeedsAreIndependent(t *testing.T) {
	r := Rule{On: Link, Drop: .5}
	base := Way{1, 2, Link, Packets}
	for name, other := range map[string]struct {
		w    Way
		seed uint64
	}{
		"way back": {Way{2, 1, Link, Packets}, 1}, "other plane": {Way{1, 2, Gossip, Packets}, 1},
		"other peer": {Way{1, 3, Link, Packets}, 1}, "other seed": {base, 2},
	} {
		differ := 0
		for n := range uint64(10000) {
			a := (&Seen{Rule: &r, Seed: 1, N: n}).Decide(base, 1).Drop
			b := (&Seen{Rule: &r, Seed: other.seed, N: n}).Decide(other.w, 1).Drop
			if a != b {
				differ++
			}
		}
		if differ < 4750 || differ > 5250 {
			t.Errorf("%s: %d of 10000 decisions differ, want half", name, differ)
		}
	}
}

func TestDelaysStayInTheirBounds(t *testing.T) {
	for _, shape := range []Shape{"", Uniform, Normal, Exponential} {
		r := Rule{On: Link, Delay: 20 * ms, Jitter: 10 * ms, Shape: shape}
		var sum, least, most time.Duration
		least = time.Hour
		const n = 10000
		for i := range uint64(n) {
			f := (&Seen{Rule: &r, Seed: 9, N: i}).Decide(Way{1, 2, Link, Packets}, 1)
			if f.Delay < 20*time.Millisecond || f.Delay > 30*time.Millisecond {
				t.Fatalf("%s: delay %v", shape, f.Delay)
			}
			sum, least, most = sum+f.Delay, min(least, f.Delay), max(most, f.Delay)
		}
		mean := map[Shape]time.Duration{"": 25 * time.Millisecond, Uniform: 25 * time.Millisecond,
			Normal: 25 * time.Millisecond, Exponential: 22400 * time.Microsecond}[shape]
		if d := sum/n - mean; d.Abs() > 300*time.Microsecond || most-least < 5*time.Millisecond {
			t.Errorf("%s: mean %v, want %v; from %v to %v", shape, sum/n, mean, least, most)
		}
	}
}

// TestWhatALostPieceCosts: on a link as long as its provider has set the kernel, on
// other streams the kernel's own time.
func TestWhatALostPieceCosts(t *testing.T) {
	for on, want := range map[Traffic]time.Duration{Gossip: Retransmit, Control: Retransmit,
		Link: LinkRetransmit, Messages: LinkRetransmit, RMA: LinkRetransmit} {
		for _, r := range []Rule{{On: All, Drop: 1}, {On: All, Corrupt: 1}} {
			f := (&Seen{Rule: &r, Seed: 9}).Decide(Way{1, 2, on, Stream}, 1)
			if f.Delay != maxRetries*want || f.Drop {
				t.Errorf("%s: a piece that is lost or broken again and again waits for %v, want %d times %v", on, f.Delay, maxRetries, want)
			}
		}
	}
}

// TestRateIsKept sends faster than the rate: the bytes that pass in any time are at most rate and
// buffer, in order, and slower traffic passes unhindered.
func TestRateIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Bytes(rapid.Int64Range(MinRate, 10<<20).Draw(t, "rate"))
		buffer := rapid.Int64Range(2000, 100000).Draw(t, "buffer")
		var m Meter
		now, last := time.Duration(0), time.Duration(0)
		passed := int64(0)
		for range 200 {
			now += time.Duration(rapid.Int64Range(0, int64(2*time.Millisecond)).Draw(t, "gap"))
			size := rapid.IntRange(1, 1500).Draw(t, "size")
			wait, room := m.Pass(now, size, rate, buffer)
			if !room {
				continue
			}
			at := now + wait
			if at < last {
				t.Fatalf("a packet passes at %v, one before it at %v", at, last)
			}
			last = at
			passed += int64(size)
			if most := float64(rate)*last.Seconds() + 2; float64(passed) > most {
				t.Fatalf("%d bytes passed in %v at %d bytes/s", passed, last, rate)
			}
			if queued := float64(wait.Seconds()) * float64(rate); queued > float64(buffer)+1501 {
				t.Fatalf("%.0f bytes wait in a buffer of %d", queued, buffer)
			}
		}
	})
}

func TestOnlyWhatIsTooLongIsDropped(t *testing.T) {
	r := Rule{On: Link, MTU: 1200}
	for _, size := range []int{1, 1199, 1200, 1201, 65535} {
		f := (&Seen{Rule: &r, Seed: 1}).Decide(Way{1, 2, Link, Packets}, size)
		if f.Drop != (size > 1200) || f.Drop && f.Effects != Oversize {
			t.Errorf("%d bytes: %+v", size, f)
		}
	}
}

// world is a clock and a Plane of node 1 with it.
func world(seed uint64) (*Plane, *time.Duration) {
	now := new(time.Duration)
	p := NewPlane(Options{Seed: seed, Now: func() time.Duration { return *now }})
	p.SetSelf(1)
	return p, now
}

func mustAdd(t *testing.T, p *Plane, r Rule) uint64 {
	t.Helper()
	id, err := p.Add(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestRulesLiveAndEnd(t *testing.T) {
	p, now := world(1)
	to2 := Meeting{Peer: 2, On: Link, Carrier: Packets, Sending: true}
	if !p.Idle() {
		t.Error("a Plane without rules is not idle")
	}
	id := mustAdd(t, p, Rule{On: Link, To: Nodes{2}, Cut: true, After: 1000 * ms, For: 2000 * ms, Name: "cut"})
	for _, step := range []struct {
		at    time.Duration
		drop  bool
		state State
	}{{0, false, Waiting}, {999 * time.Millisecond, false, Waiting}, {time.Second, true, Active}, {2999 * time.Millisecond, true, Active}, {3 * time.Second, false, ""}} {
		*now = step.at
		if f := p.Decide(to2, 10); f.Drop != step.drop {
			t.Errorf("at %v: %+v", step.at, f)
		}
		all := p.List(false)
		if step.state == "" {
			if len(all) != 0 || !p.Idle() {
				t.Errorf("at %v: still there: %+v", step.at, all)
			}
		} else if len(all) != 1 || all[0].State != step.state || all[0].Rule.ID != id {
			t.Errorf("at %v: %+v", step.at, all)
		}
	}
	past := p.List(true)
	if len(past) != 1 || past[0].State != Ended || past[0].Counts.Stopped != 2 || past[0].Counts.Fired() != 2 || past[0].Counts.Bytes != 20 {
		t.Errorf("what ended is not remembered: %+v", past)
	}
	a, b := mustAdd(t, p, Rule{On: All, Drop: 1, Name: "x"}), mustAdd(t, p, Rule{On: All, Delay: ms, Name: "x"})
	if a == b || !p.Remove(a) || p.Remove(a) || p.RemoveNamed("x") != 1 || !p.Idle() {
		t.Error("rules are not removed one by one")
	}
	for range MaxRules {
		mustAdd(t, p, Rule{On: All, Drop: 1})
	}
	if _, err := p.AddAll([]Rule{{On: All, Drop: 1}}); err == nil {
		t.Error("more than MaxRules are taken")
	}
	if _, err := p.Add(Rule{On: All}); err == nil {
		t.Error("a rule that does nothing is taken")
	}
	if n := p.Clear(); n != MaxRules {
		t.Errorf("cleared %d", n)
	}
}

// TestWhichEndActs gives one rule to none, one and both ends.
func TestWhichEndActs(t *testing.T) {
	const packets = 4000
	for _, tt := range []struct {
		at             End
		sender, recver bool // has the rule
		want           float64
	}{
		{AtBoth, true, false, .5}, {AtBoth, false, true, .5}, {AtBoth, true, true, .25},
		{AtFrom, true, true, .5}, {AtTo, true, true, .5}, {AtFrom, false, true, 1}, {AtTo, true, false, 1},
	} {
		one, _ := world(1)
		two, _ := world(2)
		two.SetSelf(2)
		r := Rule{On: Gossip, From: Nodes{1}, To: Nodes{2}, Drop: .5, At: tt.at}
		if tt.sender {
			mustAdd(t, one, r)
		}
		if tt.recver {
			mustAdd(t, two, r)
		}
		arrived := 0
		for range packets {
			out := one.Decide(Meeting{Peer: 2, On: Gossip, Sending: true}, 9)
			if !out.Drop && !two.Decide(Meeting{Peer: 1, On: Gossip}, 9).Drop {
				arrived++
			}
			// The way back is not the rule's.
			if two.Decide(Meeting{Peer: 1, On: Gossip, Sending: true}, 9).Drop || one.Decide(Meeting{Peer: 2, On: Gossip}, 9).Drop {
				t.Fatal("a packet of the other direction is dropped")
			}
		}
		if got := float64(arrived) / packets; math.Abs(got-tt.want) > .04 {
			t.Errorf("at %q, given to sender %v, receiver %v: %.2f arrive, want %.2f", tt.at, tt.sender, tt.recver, got, tt.want)
		}
	}
}

func TestTheScheduleDependsOnTheRulesSeedOnly(t *testing.T) {
	draw := func(planeSeed uint64, before int, r Rule) (s []bool) {
		p, _ := world(planeSeed)
		for range before {
			mustAdd(t, p, Rule{On: Control, Cut: true})
		}
		mustAdd(t, p, r)
		for range 64 {
			s = append(s, p.Decide(Meeting{Peer: 2, On: Link, Sending: true}, 1).Drop)
		}
		return s
	}
	with, without := Rule{On: Link, Drop: .5, Seed: 77}, Rule{On: Link, Drop: .5}
	if !reflect.DeepEqual(draw(1, 0, with), draw(2, 3, with)) {
		t.Error("the schedule of a rule with a seed depends on its Plane")
	}
	if !reflect.DeepEqual(draw(1, 1, without), draw(1, 1, without)) || reflect.DeepEqual(draw(1, 0, without), draw(2, 0, without)) {
		t.Error("the schedule of a rule without a seed does not follow the Plane's")
	}
}

func TestGatesOfStreams(t *testing.T) {
	p, _ := world(1)
	gate := func(m Meeting) Gate { m.Carrier = Stream; return p.Gate(m, false) }
	send, recv := Meeting{Peer: 2, On: Messages, Sending: true}, Meeting{Peer: 2, On: Messages}
	for _, tt := range []struct {
		name       string
		r          Rule
		send, recv Gate
		below      Gate // of a stream whose packets are below
	}{
		{"a stream's cut is one way", Rule{On: Messages, From: Nodes{1}, To: Nodes{2}, Cut: true}, Gate{Stopped: true}, Gate{}, Gate{Stopped: true}},
		{"a link's cut stops both", Rule{On: Link, From: Nodes{2}, To: Nodes{1}, Cut: true}, Gate{Stopped: true}, Gate{Stopped: true}, Gate{}},
		{"another peer's cut", Rule{On: All, To: Nodes{3}, Cut: true}, Gate{}, Gate{}, Gate{}},
		{"another stream's cut", Rule{On: RMA, Cut: true}, Gate{}, Gate{}, Gate{}},
		{"half-open", Rule{On: All, From: Nodes{1}, HalfOpen: true}, Gate{Stopped: true, Refused: true}, Gate{Stopped: true, Refused: true}, Gate{}},
		{"reset", Rule{On: Messages, Reset: true}, Gate{Reset: true}, Gate{Reset: true}, Gate{Reset: true}},
		{"no packets is no matter", Rule{On: All, BlockUDP: true}, Gate{}, Gate{}, Gate{}},
	} {
		mustAdd(t, p, tt.r)
		below := send
		below.Below = true
		if gate(send) != tt.send || gate(recv) != tt.recv || gate(below) != tt.below {
			t.Errorf("%s: sending %+v, receiving %+v, with packets below %+v", tt.name, gate(send), gate(recv), gate(below))
		}
		p.Clear()
	}
}

func TestWatchReportsEveryChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := NewPlane(Options{})
		changed, next := p.Watch()
		if next != 0 {
			t.Errorf("without rules something changes in %v", next)
		}
		mustAdd(t, p, Rule{On: All, Cut: true, Up: 100 * ms, Down: 200 * ms, For: 1000 * ms})
		<-changed
		var edges []time.Duration
		start := time.Now()
		for {
			_, next = p.Watch()
			if next == 0 {
				break
			}
			time.Sleep(next)
			edges = append(edges, time.Since(start)/time.Millisecond)
		}
		if want := []time.Duration{100, 300, 400, 600, 700, 900, 1000}; !reflect.DeepEqual(edges, want) {
			t.Errorf("changes at %v ms, want %v", edges, want)
		}
	})
}

func TestNames(t *testing.T) {
	var n Names
	a, b := addr.UUID{1}, addr.UUID{2}
	n.SetID(a, 1)
	n.SetID(b, 2)
	n.SetPlace(a, "127.0.0.1:7000")
	n.SetPlace(a, "node-a.example:7000", at("[::ffff:10.0.0.1]:7000"))
	n.SetPlace(b, "127.0.0.1:8000")
	for text, want := range map[string]addr.NodeID{"127.0.0.1:7000": 1, "node-a.example:7000": 1, "10.0.0.1:7000": 1, "127.0.0.1:8000": 2, "127.0.0.1:1": addr.NoNode, "x": addr.NoNode} {
		if got := n.Place(text); got != want {
			t.Errorf("%s: node %d, want %d", text, got, want)
		}
	}
	if got := n.On(at("127.0.0.1:1").Addr()); !reflect.DeepEqual(got, []addr.NodeID{1, 2}) {
		t.Errorf("on loopback: %v", got)
	}
	if got := n.On(at("127.9.9.9:1").Addr()); !reflect.DeepEqual(got, []addr.NodeID{1, 2}) {
		t.Errorf("on another loopback address: %v", got)
	}
	if got := n.On(at("10.0.0.1:9").Addr()); !reflect.DeepEqual(got, []addr.NodeID{1}) {
		t.Errorf("on 10.0.0.1: %v", got)
	}
	if got := n.At(at("10.0.0.1:7000")); got != 1 {
		t.Errorf("at the resolved address: %v", got)
	}
	n.SetID(b, 1) // the ID is another machine's now
	if n.Node(a) != addr.NoNode || n.Place("127.0.0.1:8000") != 1 {
		t.Errorf("after the ID moved: %v, %v", n.Node(a), n.Place("127.0.0.1:8000"))
	}
	n.SetPlace(b, "127.0.0.1:7000") // and so is the address
	if n.Place("127.0.0.1:7000") != 1 {
		t.Error("the address did not move")
	}
	for i := range 3 * maxPlaces {
		n.SetPlace(a, at("10.1.0.1:1").Addr().String()+":"+string(rune('1'+i%9))+string(rune('0'+i/9)))
	}
	if len(n.known[a]) > maxPlaces {
		t.Errorf("%d addresses of one node are kept", len(n.known[a]))
	}
}

// TestNamesOfHosts: a node is on a host as long as it has an address there.
func TestNamesOfHosts(t *testing.T) {
	a, b := addr.UUID{1}, addr.UUID{2}
	host, other := at("10.0.0.1:1").Addr(), at("10.0.0.2:1").Addr()
	for name, tt := range map[string]struct {
		change      func(n *Names)
		host, other []addr.NodeID
	}{
		"another node has the address": {func(n *Names) { n.SetPlace(b, "10.0.0.1:7000") }, []addr.NodeID{2}, nil},
		"one of two": {func(n *Names) {
			n.SetPlace(a, "10.0.0.1:7001")
			n.SetPlace(b, "10.0.0.1:7000")
		}, []addr.NodeID{1, 2}, nil},
		"another node has the name": {func(n *Names) {
			n.SetPlace(a, "a.example:7000", at("10.0.0.2:7000"))
			n.SetPlace(b, "a.example:7000")
		}, []addr.NodeID{1}, nil},
		"the name leads elsewhere": {func(n *Names) {
			n.SetPlace(b, "b.example:7000", at("10.0.0.1:7002"))
			n.SetPlace(b, "b.example:7000", at("10.0.0.2:7002"))
		}, []addr.NodeID{1}, []addr.NodeID{2}},
		"a name that is not looked up": {func(n *Names) {
			n.SetPlace(b, "b.example:7000", at("10.0.0.2:7002"))
			n.SetPlace(b, "b.example:7000")
		}, []addr.NodeID{1}, []addr.NodeID{2}},
		"many newer addresses": {func(n *Names) {
			for i := range uint16(maxPlaces) {
				n.SetPlace(a, netip.AddrPortFrom(other, 7000+i).String())
			}
		}, nil, []addr.NodeID{1}},
	} {
		var n Names
		n.SetID(a, 1)
		n.SetID(b, 2)
		n.SetPlace(a, "10.0.0.1:7000")
		tt.change(&n)
		for at, want := range map[netip.Addr][]addr.NodeID{host: tt.host, other: tt.other} {
			if got := n.On(at); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: on %s are %v, want %v", name, at, got, want)
			}
			if len(want) == 0 && len(n.hosts[at]) > 0 {
				t.Errorf("%s: %s is kept for %v", name, at, n.hosts[at])
			}
		}
	}
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
