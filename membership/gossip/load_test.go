package gossip

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A meter counts the packets and streams that members send.
type meter struct{ packets, bytes, large, streams atomic.Int64 }

// A metered packet socket counts its sends.
type metered struct {
	net.PacketConn
	m *meter
}

func (c metered) WriteTo(p []byte, to net.Addr) (int, error) {
	c.m.packets.Add(1)
	c.m.bytes.Add(int64(len(p)))
	if c.m.large.Load() < int64(len(p)) { // the loser of a race is as large as most
		c.m.large.Store(int64(len(p)))
	}
	return c.PacketConn.WriteTo(p, to)
}

// on makes a member count into m.
func (m *meter) on(c *Config) {
	c.Packets = metered{c.Packets, m}
	dial := c.Dial
	c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
		m.streams.Add(1)
		return dial(ctx, to)
	}
}

// A load is the traffic that one member sends.
type load struct{ packets, bytes, streams float64 }

// take returns the load of each of members since the last call.
func (m *meter) take(members int) load {
	per := func(n *atomic.Int64) float64 { return float64(n.Swap(0)) / float64(members) }
	return load{per(&m.packets), per(&m.bytes), per(&m.streams)}
}

// TestWhatAMemberSendsDoesNotGrowWithTheCluster starts all members of larger and larger clusters at
// once, and counts the packets of each until all know all, and in a second in which nothing
// happens: a probe of another member and the answers to those of others, whatever the number of
// members, and now and then a stream.
func TestWhatAMemberSendsDoesNotGrowWithTheCluster(t *testing.T) {
	const rest = 30 // seconds
	sizes := []int{8, 32, 100, 200}
	if raceEnabled {
		sizes = []int{8, 32}
	}
	for _, n := range sizes {
		bubble.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.end()
			var m meter
			var all []*Gossip
			for i := 1; i <= n; i++ {
				all = append(all, b.start(i, 1, m.on))
			}
			took := b.within(30*time.Second, "all see all", func() bool { return complete(all) })
			storm := m.take(n)
			time.Sleep(time.Minute) // gossip settles
			m.take(n)
			time.Sleep(rest * time.Second)
			idle := m.take(n)
			t.Logf("%d members: all see all after %v, with %.0f packets, %.1f KiB and %.1f streams of each; then %.1f packets, %.0f bytes and %.3f streams of each a second",
				n, took, storm.packets, storm.bytes/1024, storm.streams, idle.packets/rest, idle.bytes/rest, idle.streams/rest)
			// 2.5 probes and as many answers; the rest is of members that answered late.
			if perSecond := idle.packets / rest; perSecond < 4 || perSecond > 6 {
				t.Errorf("%d members: %.1f packets of each a second, want about 5", n, perSecond)
			}
			// With the headers of IPv6 and UDP it fits 1,280 bytes.
			if large := m.large.Load(); large > 1280-40-8 || n > 8 && large < 1000 {
				t.Errorf("%d members: packets of up to %d bytes, want 1,232 at most, and full ones", n, large)
			}
			// Each learns of each other, in packets of 1,232 bytes and states of all.
			if bound := float64(200 * n); storm.packets > bound {
				t.Errorf("%d members: %.0f packets of each until all saw all, want at most %.0f", n, storm.packets, bound)
			}
		})
	}
}
