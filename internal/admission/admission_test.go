package admission

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
)

var testLimits = Limits{Total: 32, Reserved: 8, PerAddress: 6, PerNetwork: 12, Grace: 250 * time.Millisecond}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// A rig is a table with a clock and keys that count up.
type rig struct {
	*Table[int]
	t    *testing.T
	now  time.Time
	last int
}

func newRig(t *testing.T, l Limits) *rig {
	return &rig{Table: New[int](l), t: t, now: time.Unix(1000, 0)}
}

func (r *rig) enter(from string, known bool) (evicted int, ok bool) {
	r.last++
	return r.Enter(r.last, ip(from), known, r.now)
}

// fill takes count slots of one address, each of which must be there.
func (r *rig) fill(from string, count int) {
	r.t.Helper()
	for range count {
		if evicted, ok := r.enter(from, false); !ok || evicted != 0 {
			r.t.Fatalf("%s: evicted %d, admitted %v, want a free slot", from, evicted, ok)
		}
	}
}

func TestOneAddressAndOneNetworkAreBounded(t *testing.T) {
	r := newRig(t, testLimits)
	r.fill("192.0.2.1", 6)
	if _, ok := r.enter("192.0.2.1", false); ok {
		t.Error("a seventh entry of one address was admitted within the grace of the others")
	}
	r.fill("192.0.2.2", 6)
	if evicted, ok := r.enter("192.0.2.3", false); !ok || evicted != 1 {
		t.Errorf("a third address of a full network: evicted %d, admitted %v, want the oldest of the first to go", evicted, ok)
	}
	if r.Len() != 12 {
		t.Errorf("%d slots of one network are taken, want 12", r.Len())
	}
}

func TestTheNetworkThatHoldsMostIsEvicted(t *testing.T) {
	r := newRig(t, testLimits)
	r.fill("192.0.2.1", 6)
	r.fill("192.0.2.2", 6)
	r.fill("198.51.100.1", 6)
	r.fill("198.51.100.2", 5)
	r.fill("203.0.113.1", 1) // all 24 slots of strangers
	for i := range 11 {
		if evicted, ok := r.enter("203.0.113.2", false); i < 5 && (!ok || evicted == 0 || evicted == 24) {
			t.Errorf("entry %d of a network that holds few: evicted %d, admitted %v", i, evicted, ok)
		}
	}
	if !r.Has(24) {
		t.Error("the only entry of an address was evicted for one that holds more")
	}
}

// Addresses of 256 networks hold one connection each, silent: a newcomer can evict only one that
// has been silent for longer than Grace.
func TestManyNetworksKeepNobodyOut(t *testing.T) {
	r := newRig(t, testLimits)
	for i := range 24 {
		r.fill(netip.AddrFrom4([4]byte{10, 1, byte(i), 1}).String(), 1)
	}
	if evicted, ok := r.enter("10.2.0.1", false); !ok || evicted != 1 {
		t.Errorf("a new network: evicted %d, admitted %v, want the oldest to go", evicted, ok)
	}
	if _, ok := r.enter("10.2.0.1", false); ok {
		t.Error("a network that holds one like all others was admitted within their grace")
	}
	r.now = r.now.Add(testLimits.Grace)
	if evicted, ok := r.enter("10.2.0.1", false); !ok || evicted != 25 {
		t.Errorf("after the grace: evicted %d, admitted %v, want its own oldest to go", evicted, ok)
	}
}

func TestMembersHaveTheirReserve(t *testing.T) {
	r := newRig(t, testLimits)
	for i := range 100 {
		r.enter(netip.AddrFrom4([4]byte{10, byte(i), 0, 1}).String(), false)
	}
	for i := range 8 {
		if evicted, ok := r.enter("192.0.2.1", true); !ok || evicted != 0 {
			t.Fatalf("member %d: evicted %d, admitted %v, want a slot of the reserve", i, evicted, ok)
		}
	}
	if evicted, ok := r.enter("192.0.2.2", true); !ok || evicted == 0 {
		t.Errorf("a second member's address: evicted %d, admitted %v, want one of the first to go", evicted, ok)
	}
	if r.Len() != 32 {
		t.Errorf("%d slots are taken, want all 32", r.Len())
	}
}

func TestLoopbackMayHoldAll(t *testing.T) {
	for _, from := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
		r := newRig(t, testLimits)
		r.fill(from, 24)
		if _, ok := r.enter(from, false); ok {
			t.Errorf("%s: more than all slots of strangers", from)
		}
		if evicted, ok := r.enter("192.0.2.1", false); !ok || evicted != 1 {
			t.Errorf("%s holds all, another network: evicted %d, admitted %v", from, evicted, ok)
		}
	}
}

func TestAddressOf(t *testing.T) {
	for _, c := range []struct {
		in   net.Addr
		want netip.Addr
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, ip("192.0.2.1")},
		{&net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, ip("fe80::1")},
		{&net.UnixAddr{Name: "/tmp/x"}, netip.Addr{}},
		{nil, netip.Addr{}},
	} {
		if got := AddressOf(c.in); got != c.want {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

// A script is a sequence of arrivals and departures, read from bytes. After each step it checks the
// table's guarantees.
func script(t *testing.T, steps []byte) {
	r := newRig(t, testLimits)
	for ; len(steps) >= 3; steps = steps[3:] {
		op, network, host := steps[0], steps[1]%12, steps[2]%6
		r.now = r.now.Add(time.Duration(op>>4) * 10 * time.Millisecond)
		switch op & 3 {
		case 0: // any that has a slot leaves
			if keys := r.Keys(); len(keys) > 0 {
				r.Leave(keys[int(host)%len(keys)])
			}
		default:
			r.arrive(netip.AddrFrom4([4]byte{10, 0, network, host}), op&3 == 3)
		}
		r.check()
	}
}

// arrive enters an address and holds the decision to the promises.
func (r *rig) arrive(from netip.Addr, known bool) {
	r.t.Helper()
	strangers, members := len(r.strangers.entries), len(r.members.entries)
	held, most := r.strangers.perNet[networkOf(from)], 0
	for _, n := range r.strangers.perNet {
		most = max(most, n)
	}
	address := r.strangers.perAddr[from]
	before := r.Len()
	r.last++
	evicted, ok := r.Enter(r.last, from, known, r.now)
	switch {
	case known && members < testLimits.Reserved && (!ok || evicted != 0):
		r.t.Errorf("a member was refused or evicted %d while members held %d of the reserve", evicted, members)
	case !known && address < testLimits.PerAddress && held < testLimits.PerNetwork && held < most && !ok:
		r.t.Errorf("a network that holds %d was refused while one holds %d", held, most)
	case !known && strangers < testLimits.Total-testLimits.Reserved && address < testLimits.PerAddress && held < testLimits.PerNetwork && (!ok || evicted != 0):
		r.t.Error("refused, or evicted another, while there was a free slot")
	case ok != r.Has(r.last) || evicted != 0 && (!ok || r.Has(evicted)):
		r.t.Error("the answer is not what the table says")
	case !ok && r.Len() != before:
		r.t.Error("a refusal has changed the table")
	}
}

// check holds the bounds and the counters.
func (r *rig) check() {
	r.t.Helper()
	for _, p := range []*pool[int]{&r.strangers, &r.members} {
		perAddr, perNet := map[netip.Addr]int{}, map[netip.Prefix]int{}
		for _, e := range p.entries {
			perAddr[e.from]++
			perNet[networkOf(e.from)]++
		}
		if len(p.entries) > p.limits.Total || len(perAddr) != len(p.perAddr) || len(perNet) != len(p.perNet) {
			r.t.Fatalf("%d entries of %d; %d addresses and %d networks are counted as %d and %d", len(p.entries), p.limits.Total,
				len(perAddr), len(perNet), len(p.perAddr), len(p.perNet))
		}
		for a, n := range perAddr {
			if n != p.perAddr[a] || n > p.limits.PerAddress {
				r.t.Fatalf("%v holds %d, counted as %d, at most %d", a, n, p.perAddr[a], p.limits.PerAddress)
			}
		}
		for a, n := range perNet {
			if n != p.perNet[a] || n > p.limits.PerNetwork {
				r.t.Fatalf("%v holds %d, counted as %d, at most %d", a, n, p.perNet[a], p.limits.PerNetwork)
			}
		}
	}
}

func TestBoundsHoldForEverySchedule(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 0))
		steps := make([]byte, 1200)
		for i := range steps {
			steps[i] = byte(rng.Uint32())
		}
		if script(t, steps); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 0, 0, 1, 0, 0, 3, 1, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, steps []byte) { script(t, steps) })
}
