package gossip

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
)

var (
	testCluster = addr.UUID{0xC1}
	testKey     = []byte("0123456789abcdef0123456789abcdef")
)

// A bench is a network with gossiping members, one per host 10.0.0.i.
type bench struct {
	t   *testing.T
	net *netsim.Network
	all []*Gossip
}

// newBench starts a bench; end ends it. It runs inside a bubble.
func newBench(t *testing.T) *bench {
	b := &bench{t: t, net: netsim.New(1)}
	b.net.SetDefaultRules(netsim.Rules{Delay: 250 * time.Microsecond})
	return b
}

// end closes every member and lets memberlist's probes run out.
func (b *bench) end() {
	for _, g := range b.all {
		g.Close()
	}
	b.net.Close()
	time.Sleep(20 * time.Second)
	synctest.Wait()
}

func hostIP(i int) string  { return fmt.Sprintf("10.0.0.%d", i) }
func uuid(i int) addr.UUID { return addr.UUID{0xAA, byte(i)} }
func address(i int) string { return hostIP(i) + ":7947" }
func key(i, epoch int) Key { return Key{uuid(i), uint64(epoch)} }
func meta(i int) Meta {
	return Meta{Incarnation: addr.Incarnation{Node: addr.NodeID(i), Generation: 1}}
}
func names(list []Member) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.Key().String())
	}
	slices.Sort(out)
	return out
}

// start starts member i in the given epoch, with member 1 as its seed.
func (b *bench) start(i, epoch int, change ...func(*Config)) *Gossip {
	b.t.Helper()
	packets, err := b.net.ListenPacket(address(i))
	if err != nil {
		b.t.Fatal(err)
	}
	streams, err := b.net.Listen(address(i))
	if err != nil {
		b.t.Fatal(err)
	}
	c := Config{
		Cluster: testCluster,
		UUID:    uuid(i),
		Epoch:   uint64(epoch),
		Meta:    meta(i),
		Keys:    [][]byte{testKey},
		Packets: packets,
		Streams: streams,
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			return b.net.Dial(ctx, hostIP(i), to)
		},
		Seeds: []string{address(1)},
		Seed:  uint64(i),
		Log:   zerolog.Nop(),
	}
	for _, f := range change {
		f(&c)
	}
	g, err := Start(c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.all = append(b.all, g)
	return g
}

// kill ends a member as kill -9 would.
func (b *bench) kill(i int, g *Gossip) {
	b.net.Crash(hostIP(i))
	g.Close()
}

// within waits until ok holds and returns how long it took; beyond limit it fails with the
// expectation.
func (b *bench) within(limit time.Duration, want string, ok func() bool) time.Duration {
	b.t.Helper()
	began := time.Now()
	for {
		if ok() {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			b.t.Errorf("after %v: expected that %s", limit, want)
			return time.Since(began)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// complete reports whether each of list sees exactly the others.
func complete(list []*Gossip) bool {
	for _, g := range list {
		var want []string
		for _, o := range list {
			if o != g {
				want = append(want, o.Self().String())
			}
		}
		slices.Sort(want)
		if !slices.Equal(names(g.Members()), want) {
			return false
		}
	}
	return true
}

// reportsOf returns what g has reported about k since the last call, in words.
func reportsOf(g *Gossip, k Key) []string {
	var out []string
	for _, r := range g.Take() {
		if r.Member.Key() == k {
			out = append(out, r.Kind.String())
		}
	}
	return out
}

func TestEightMembersFindEachOtherWithinASecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var all []*Gossip
		for i := 1; i <= 8; i++ {
			all = append(all, b.start(i, 1))
		}
		b.within(time.Second, "all see all", func() bool { return complete(all) })
		for _, m := range all[7].Members() {
			if want := meta(int(m.UUID[1])); m.Meta.Incarnation != want.Incarnation || m.Meta.Cluster != testCluster {
				t.Errorf("metadata of %v arrived as %+v, want %+v", m.Key(), m.Meta, want)
			}
		}
	})
}

func TestKilledMemberIsGone(t *testing.T) {
	bounds := map[Profile]time.Duration{Fast: 2500 * time.Millisecond, Normal: 3500 * time.Millisecond, Calm: 15 * time.Second}
	for profile, bound := range bounds {
		t.Run(string(profile), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.end()
				var all []*Gossip
				for i := 1; i <= 8; i++ {
					all = append(all, b.start(i, 1, func(c *Config) { c.Profile = profile }))
				}
				b.within(2*time.Second, "all see all", func() bool { return complete(all) })
				for _, g := range all {
					g.Take()
				}
				b.kill(8, all[7])
				took := b.within(bound, "the killed member is gone", func() bool { return complete(all[:7]) })
				t.Logf("%s: gone after %v", profile, took)
				for _, g := range all[:7] {
					if got := reportsOf(g, key(8, 1)); !slices.Equal(got, []string{"gone"}) {
						t.Errorf("reports about the killed member: %v, want one that it is gone", got)
					}
				}
			})
		})
	}
}

func TestRestartIsAnotherMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one, two, three := b.start(1, 1), b.start(2, 1), b.start(3, 1)
		b.within(time.Second, "all see all", func() bool { return complete([]*Gossip{one, two, three}) })
		one.Take()
		b.kill(3, three)
		time.Sleep(50 * time.Millisecond)
		b.start(3, 2)
		b.within(time.Second, "the new start is seen", func() bool {
			return slices.Contains(names(one.Members()), key(3, 2).String())
		})
		b.within(4*time.Second, "the old start is gone", func() bool {
			return !slices.Contains(names(one.Members()), key(3, 1).String())
		})
		kinds := make(map[Key]Kind)
		for _, r := range one.Take() {
			kinds[r.Member.Key()] = r.Kind
		}
		if kinds[key(3, 2)] != Seen || kinds[key(3, 1)] != Gone {
			t.Errorf("reports %v, want %v seen and %v gone", kinds, key(3, 2), key(3, 1))
		}
	})
}

func TestSplitHeals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var all []*Gossip
		var left, right []string
		for i := 1; i <= 5; i++ {
			all = append(all, b.start(i, 1))
			if i <= 3 {
				left = append(left, hostIP(i))
			} else {
				right = append(right, hostIP(i))
			}
		}
		b.within(time.Second, "all see all", func() bool { return complete(all) })
		b.net.Partition(left, right)
		b.within(10*time.Second, "each side is alone", func() bool { return complete(all[:3]) && complete(all[3:]) })
		time.Sleep(60 * time.Second)
		if !complete(all[:3]) || !complete(all[3:]) {
			t.Error("the split leaked")
		}
		b.net.Heal()
		took := b.within(5*time.Second, "the split healed", func() bool { return complete(all) })
		t.Logf("healed after %v", took)
	})
}

// A blockable is a packet socket whose packets can be stopped.
type blockable struct {
	net.PacketConn
	blocked *atomic.Bool
	dropped *atomic.Int64
}

func (c blockable) WriteTo(p []byte, to net.Addr) (int, error) {
	if c.blocked.Load() {
		c.dropped.Add(1)
		return len(p), nil
	}
	return c.PacketConn.WriteTo(p, to)
}

func TestBlockedPacketsWithOpenStreamsCauseNoReport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var blocked atomic.Bool
		var dropped atomic.Int64
		var all []*Gossip
		for i := 1; i <= 3; i++ {
			all = append(all, b.start(i, 1, func(c *Config) {
				c.Packets = blockable{c.Packets, &blocked, &dropped}
			}))
		}
		b.within(time.Second, "all see all", func() bool { return complete(all) })
		for _, g := range all {
			g.Take()
		}
		blocked.Store(true)
		time.Sleep(time.Minute)
		if dropped.Load() == 0 {
			t.Error("no packet was blocked: the test shows nothing")
		}
		for i, g := range all {
			for _, r := range g.Take() {
				t.Errorf("member %d reported %v as %v, want no report", i+1, r.Member.Key(), r.Kind)
			}
		}
	})
}

func TestLeavingIsReportedAsLeaving(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one, two, three := b.start(1, 1), b.start(2, 1), b.start(3, 1)
		b.within(time.Second, "all see all", func() bool { return complete([]*Gossip{one, two, three}) })
		one.Take()
		two.Take()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := three.Leave(ctx); err != nil {
			t.Errorf("Leave: %v", err)
		}
		three.Close()
		b.within(time.Second, "it is gone", func() bool { return complete([]*Gossip{one, two}) })
		for _, g := range []*Gossip{one, two} {
			for _, r := range g.Take() {
				if r.Member.Key() == key(3, 1) && (r.Kind != Gone || !r.Member.Meta.Leaving) {
					t.Errorf("report %v with leaving=%v, want gone and leaving", r.Kind, r.Member.Meta.Leaving)
				}
			}
		}
		if err := three.Update(meta(3)); err == nil {
			t.Error("Update after Leave succeeded")
		}
	})
}

func TestUpdateReachesEveryone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one, two := b.start(1, 1), b.start(2, 1)
		b.within(time.Second, "both see each other", func() bool { return complete([]*Gossip{one, two}) })
		one.Take()
		want := Meta{Cluster: testCluster, Incarnation: addr.Incarnation{Node: 2, Generation: 9}, Term: 3,
			Addresses: []string{"10.0.0.2:7946"}, Providers: []string{"quic"}}
		if err := two.Update(want); err != nil {
			t.Fatal(err)
		}
		b.within(time.Second, "the update arrives", func() bool {
			return one.Members()[0].Meta.Incarnation.Generation == 9
		})
		if got := reportsOf(one, key(2, 1)); !slices.Equal(got, []string{"updated"}) {
			t.Errorf("reports %v, want one update", got)
		}
		if got := fmt.Sprintf("%+v", one.Members()[0].Meta); got != fmt.Sprintf("%+v", want) {
			t.Errorf("metadata %s, want %+v", got, want)
		}
	})
}

// refused starts a member that differs from member 1 by change, and expects
// that neither hears of the other. Member 1 says why, in few lines.
func refused(t *testing.T, change func(*Config)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var out lockedBuffer
		logged := func(c *Config) { c.Log = zerolog.New(&out).Level(zerolog.InfoLevel) }
		one, odd := b.start(1, 1, logged), b.start(2, 1, change)
		time.Sleep(2 * time.Minute)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if !strings.Contains(lines[0], `"remote":"10.0.0.2:`) || !strings.Contains(lines[0], "not sealed as gossip of this cluster") || len(lines) > 70 {
			t.Errorf("%d lines about a foreign member, the first is %s", len(lines), lines[0])
		}
		if last := lines[len(lines)-1]; !strings.Contains(last, "most from 10.0.0.2") && !strings.Contains(last, "stream dropped") {
			t.Errorf("the last line is %s", last)
		}
		if strings.Contains(out.String(), "memberlist") {
			t.Errorf("memberlist logs\n%s", out.String())
		}
		for _, g := range []*Gossip{one, odd} {
			if got := names(g.Members()); len(got) != 0 {
				t.Errorf("%v believes in %v", g.Self(), got)
			}
			if got := g.Take(); len(got) != 0 {
				t.Errorf("%v reported %v", g.Self(), got)
			}
		}
	})
}

func TestWrongKeyIsRefused(t *testing.T) {
	refused(t, func(c *Config) { c.Keys = [][]byte{[]byte("another-key-another-key-another!")} })
}

func TestForeignClusterIsRefused(t *testing.T) {
	refused(t, func(c *Config) { c.Cluster = addr.UUID{0xC2} })
}

func TestKeysRotateWithoutAReport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		all := []*Gossip{b.start(1, 1), b.start(2, 1), b.start(3, 1)}
		b.within(time.Second, "all see all", func() bool { return complete(all) })
		for _, g := range all {
			g.Take()
		}
		next := []byte("fedcba9876543210fedcba9876543210")
		for _, keys := range [][][]byte{{testKey, next}, {next, testKey}, {next}} {
			for _, g := range all {
				if err := g.SetKeys(keys); err != nil {
					t.Errorf("SetKeys: %v", err)
				}
				time.Sleep(2 * time.Second)
			}
		}
		for _, g := range all {
			if got := g.Take(); len(got) != 0 {
				t.Errorf("%v reported %v during the rotation", g.Self(), got)
			}
		}
		late := b.start(4, 1)
		time.Sleep(3 * time.Second)
		if got := late.Members(); len(got) != 0 {
			t.Errorf("a member with the old key joined: %v", names(got))
		}
	})
}

func TestMembersAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one := b.start(1, 1, func(c *Config) { c.MaxMembers = 2 })
		b.start(2, 1)
		b.start(3, 1)
		four := b.start(4, 1)
		time.Sleep(5 * time.Second)
		if got := names(one.Members()); len(got) != 2 {
			t.Errorf("members %v, want 2 of 3", got)
		}
		if got := names(four.Members()); len(got) != 3 {
			t.Errorf("members %v without the bound, want 3", got)
		}
	})
}

func TestCrashedMemberMakesRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one := b.start(1, 1, func(c *Config) { c.MaxMembers = 1 })
		two := b.start(2, 1)
		b.within(time.Second, "both see each other", func() bool { return complete([]*Gossip{one, two}) })
		b.kill(2, two)
		b.within(5*time.Second, "it is gone", func() bool { return len(one.Members()) == 0 })
		b.start(2, 2)
		b.within(3*time.Second, "its next start is seen", func() bool {
			return slices.Equal(names(one.Members()), []string{key(2, 2).String()})
		})
	})
}

func TestStartRefusesBadConfig(t *testing.T) {
	good := Config{Cluster: testCluster, UUID: uuid(1), Epoch: 1, Keys: [][]byte{testKey}, Bind: "127.0.0.1:0"}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no cluster", func(c *Config) { c.Cluster = addr.UUID{} }, "UUID"},
		{"no key", func(c *Config) { c.Keys = nil }, "no key"},
		{"short key", func(c *Config) { c.Keys = [][]byte{[]byte("short")} }, "keys"},
		{"profile", func(c *Config) { c.Profile = "hasty" }, "want fast, normal or calm"},
		{"metadata", func(c *Config) { c.Meta.Providers = []string{""} }, "provider"},
		{"unspecified address", func(c *Config) { c.Bind = "0.0.0.0:0" }, "address to advertise"},
		{"advertise", func(c *Config) { c.Advertise = "nowhere" }, "want ip:port"},
		{"bind", func(c *Config) { c.Bind = "192.0.2.1:1" }, "listen"},
	} {
		cfg := good
		c.change(&cfg)
		g, err := Start(cfg)
		if err == nil {
			g.Close()
			t.Errorf("%s: Start succeeded", c.name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %q, want it to say %q", c.name, err, c.want)
		}
	}
}
