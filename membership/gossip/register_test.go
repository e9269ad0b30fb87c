package gossip

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// checkRegister holds a register to its bounds and counters.
func checkRegister(t *testing.T, r *register) {
	t.Helper()
	var proven, unproven, onTrust int
	starts := map[addr.UUID]int{}
	for k, o := range r.records {
		starts[k.UUID]++
		switch {
		case o.proven:
			proven++
		default:
			unproven++
			if o.trusted {
				onTrust++
			}
		}
	}
	if proven != r.proven || unproven != r.unproven || onTrust != r.onTrust || len(starts) != len(r.starts) {
		t.Fatalf("%d proven, %d not, %d trusted all the same, %d UUIDs; counted as %d, %d, %d, %d",
			proven, unproven, onTrust, len(starts), r.proven, r.unproven, r.onTrust, len(r.starts))
	}
	if len(r.records) > r.max {
		t.Fatalf("%d records, at most %d", len(r.records), r.max)
	}
	for u, n := range starts {
		if n > maxStarts || n != r.starts[u] {
			t.Fatalf("%d starts of %v, counted as %d", n, u, r.starts[u])
		}
	}
}

// Whatever is gossiped about members that are not proven, and in whatever order: the
// register keeps its bounds, memberlist believes in few of them, and those that are
// proven stay.
func TestRegisterKeepsItsBounds(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := newRegister(300 + rng.IntN(400))
		now := time.Unix(1000, 0)
		made := func(first byte, of int) Member {
			i := rng.IntN(of)
			return Member{UUID: addr.UUID{first, byte(i >> 8), byte(i)}, Epoch: uint64(rng.IntN(6)), Address: netip.MustParseAddrPort("10.0.0.1:1")}
		}
		alive := map[Key]bool{}
		for range 3000 {
			now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			m, proven := made(0xFE, 2000), false
			if rng.IntN(4) == 0 && seed%2 == 0 {
				m, proven = made(0xAA, 40), true
			}
			_, err := r.admit(m, proven, now)
			switch {
			case err == nil && proven:
				r.saw(m, false, now)
				alive[m.Key()] = true
			case err == nil:
				r.saw(m, rng.IntN(2) == 0, now)
			case proven && !errors.Is(err, errManyStarts):
				t.Fatalf("seed %d: a proven member is refused: %v", seed, err)
			}
			if rng.IntN(10) == 0 {
				r.forget(now)
			}
			if rng.IntN(20) == 0 {
				checkRegister(t, r)
			}
			if r.unproven > maxUnproven || r.onTrust > maxTrusted {
				t.Fatalf("seed %d: %d are not proven, memberlist believes in %d of them", seed, r.unproven, r.onTrust)
			}
		}
		for k := range alive {
			if r.records[k] == nil {
				t.Errorf("seed %d: %v is proven and alive, and was dropped", seed, k)
			}
		}
	}
}

// A member that is not proven is set apart: there is a report about it, and that it is gone when the
// report is not repeated. When the host's table has it, it is a member at once.
func TestAnUnprovenMemberBecomesAMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var table atomic.Uint64 // how many are in it
		table.Store(2)
		proven := func(c *Config) { c.Proven = func(k Key) bool { return uint64(k.UUID[1]) <= table.Load() } }
		one, two := b.start(1, 1, proven), b.start(2, 1, proven)
		b.within(time.Second, "both see each other", func() bool { return complete([]*Gossip{one, two}) })
		one.Take()
		three := b.start(3, 1, proven)
		var reported []string
		b.within(time.Second, "there is a report about the third", func() bool {
			reported = append(reported, reportsOf(one, key(3, 1))...)
			return len(reported) > 0
		})
		if !slices.Equal(reported, []string{"seen"}) {
			t.Errorf("reports %v, want that it is seen", reported)
		}
		time.Sleep(2 * time.Second)
		if got := names(one.Members()); len(got) != 1 {
			t.Errorf("members %v, want only the second", got)
		}
		table.Store(3)
		one.Recheck()
		two.Recheck()
		b.within(200*time.Millisecond, "all see all", func() bool { return complete([]*Gossip{one, two, three}) })
		four := b.start(4, 1, proven)
		time.Sleep(5 * time.Second)
		one.Take()
		b.kill(4, four)
		time.Sleep(2 * unprovenLasts)
		if reported := reportsOf(one, key(4, 1)); !slices.Equal(reported, []string{"gone"}) {
			t.Errorf("a minute after the fourth: reports %v, want that it is gone", reported)
		}
	})
}

// Absent members are dialed at most eight times a round, each address less and less often, and one
// of the members every round.
func TestAbsentMembersAreDialedWithinBounds(t *testing.T) {
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 7947)
	}
	tried := map[netip.AddrPort]attempt{}
	count := map[netip.AddrPort]int{}
	now := time.Unix(1000, 0)
	dials := 0
	for range 600 { // ten minutes
		var members []netip.AddrPort
		for i := range 100 {
			members = append(members, at(i))
		}
		seeds := []netip.AddrPort{at(1), at(200)}
		list := due(seeds, members, false, true, tried, now)
		if len(list) > reconnectDials || len(list) == 0 {
			t.Fatalf("%d dials in a round", len(list))
		}
		for _, a := range list {
			f := tried[a].failed + 1
			tried[a] = attempt{failed: f, next: now.Add(retryAfter(f, slices.Contains(seeds, a)))}
			count[a]++
			dials++
		}
		now = now.Add(time.Second)
	}
	t.Logf("%d dials in ten minutes, %d to one member, %d to a seed", dials, count[at(50)], count[at(200)])
	if n := count[at(50)]; n < 10 || n > 20 {
		t.Errorf("%d dials to a member that is absent, want about one a minute", n)
	}
	if n := count[at(200)]; n < 100 {
		t.Errorf("%d dials to a seed, want one in about four seconds", n)
	}
	if due(nil, nil, true, true, tried, now); len(tried) != 0 {
		t.Errorf("%d attempts are remembered at addresses that are not absent", len(tried))
	}
}
