package inject

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
)

// sockets are the two ends of a netsim network, each below the Layer of its
// node: 1 at 10.0.0.1, 2 at 10.0.0.2.
type sockets struct {
	t      testing.TB
	layers [2]*Layer
	conns  [2]net.PacketConn
}

func openSockets(t testing.TB) *sockets {
	n := netsim.New(1)
	s := &sockets{t: t}
	for i := range s.conns {
		c, err := n.ListenPacket(fmt.Sprintf("10.0.0.%d:7000", i+1))
		if err != nil {
			t.Fatal(err)
		}
		s.layers[i] = layer(t, addr.NodeID(i+1))
		names(s.layers[i])
		s.conns[i] = s.layers[i].PacketConn(c, faults.Gossip)
		t.Cleanup(func() { s.conns[i].Close() })
	}
	return s
}

// names gives a layer where nodes 1 and 2 are in a netsim network.
func names(l *Layer) {
	for i, node := range []addr.UUID{idA.Node, idB.Node} {
		l.plane.Names.SetPlace(node, fmt.Sprintf("10.0.0.%d:7000", i+1))
	}
}

// add adds a rule at node 1 or 2, and returns the function that reads its counts.
func add(t testing.TB, l *Layer, r faults.Rule) func() faults.Counters {
	t.Helper()
	id, err := l.plane.Add(r)
	if err != nil {
		t.Fatal(err)
	}
	return func() faults.Counters {
		for _, st := range l.plane.List(true) {
			if st.Rule.ID == id {
				return st.Counts
			}
		}
		t.Fatalf("rule %d is gone", id)
		return faults.Counters{}
	}
}

// send sends n numbered packets from one socket to the other, a millisecond
// apart.
func (s *sockets) send(from, n int) {
	s.t.Helper()
	to := s.conns[1-from].LocalAddr()
	for i := range n {
		p := bytes.Repeat([]byte{byte(i)}, 100)
		if k, err := s.conns[from].WriteTo(p, to); k != len(p) || err != nil {
			s.t.Fatalf("write: %d, %v", k, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A got is a packet that arrived: its number, whether it is as it was sent, and
// when.
type got struct {
	n     int
	whole bool
	at    time.Duration
}

// receive reads the packets that arrive at a socket within a time.
func (s *sockets) receive(at int, within time.Duration) (all []got) {
	s.t.Helper()
	start := time.Now()
	s.conns[at].SetReadDeadline(start.Add(within))
	buf := make([]byte, 2000)
	for {
		n, _, err := s.conns[at].ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		if err != nil {
			s.t.Fatal(err)
		}
		var count [256]int
		for _, b := range buf[:n] {
			count[b]++
		}
		most := slices.Index(count[:], slices.Max(count[:]))
		all = append(all, got{most, count[most] == n && n == 100, time.Since(start)})
	}
}

// exchange sends from node 1 to node 2 while that one receives.
func (s *sockets) exchange(n int) []got {
	s.t.Helper()
	go s.send(0, n)
	return s.receive(1, time.Duration(n)*time.Millisecond+2*time.Second)
}

func numbers(all []got) (ns []int) {
	for _, g := range all {
		ns = append(ns, g.n)
	}
	return ns
}

// TestFaultsOfPackets has each fault of packets act on packets from node 1 to node 2: as a rule at
// the sender, and as one at the receiver.
func TestFaultsOfPackets(t *testing.T) {
	const n = 200
	inOrder := func(all []got) bool { return slices.IsSorted(numbers(all)) }
	tests := []struct {
		name  string
		r     faults.Rule
		check func(all []got, c faults.Counters) bool
	}{
		{"drop", faults.Rule{Drop: .2}, func(all []got, c faults.Counters) bool {
			return len(all) == n-int(c.Dropped) && c.Dropped > 10 && c.Dropped < 90 && inOrder(all)
		}},
		{"drop all", faults.Rule{Drop: 1}, func(all []got, c faults.Counters) bool { return len(all) == 0 && c.Dropped == n }},
		{"cut", faults.Rule{Cut: true}, func(all []got, c faults.Counters) bool { return len(all) == 0 && c.Stopped == n }},
		{"half-open", faults.Rule{HalfOpen: true}, func(all []got, c faults.Counters) bool { return len(all) == 0 && c.Stopped == n }},
		{"no UDP", faults.Rule{BlockUDP: true}, func(all []got, c faults.Counters) bool { return len(all) == 0 && c.Stopped == n }},
		{"mtu", faults.Rule{MTU: 99}, func(all []got, c faults.Counters) bool { return len(all) == 0 && c.Oversize == n }},
		{"mtu that fits", faults.Rule{MTU: 100}, func(all []got, c faults.Counters) bool { return len(all) == n && c.Oversize == 0 }},
		{"delay", faults.Rule{Delay: 50 * ms}, func(all []got, c faults.Counters) bool {
			return len(all) == n && c.Delayed == n && inOrder(all) && all[0].at == 50*time.Millisecond && all[9].at == 59*time.Millisecond
		}},
		{"jitter", faults.Rule{Jitter: 20 * ms}, func(all []got, c faults.Counters) bool { return len(all) == n && !inOrder(all) && c.Delayed > 150 }},
		{"duplicate", faults.Rule{Duplicate: .3}, func(all []got, c faults.Counters) bool {
			return len(all) == n+int(c.Duplicated) && c.Duplicated > 20
		}},
		{"reorder", faults.Rule{Reorder: .3}, func(all []got, c faults.Counters) bool {
			return len(all) == n && c.Reordered > 20 && !inOrder(all)
		}},
		{"corrupt", faults.Rule{Corrupt: .5}, func(all []got, c faults.Counters) bool {
			broken := 0
			for _, g := range all {
				if !g.whole {
					broken++
				}
			}
			return len(all) == n && broken == int(c.Corrupted) && broken > 50
		}},
		{"rate", faults.Rule{Rate: 10000, Buffer: 1000}, func(all []got, c faults.Counters) bool {
			// 100 packets a second pass, for the 0.2 s of sending and the 0.1 s
			// that the buffer holds.
			return len(all) > 25 && len(all) < 35 && c.Overflowed > 150 && c.Limited > 20 && inOrder(all)
		}},
		{"flap", faults.Rule{Cut: true, Up: 50 * ms, Down: 50 * ms}, func(all []got, c faults.Counters) bool {
			return len(all) > 90 && len(all) < 110 && int(c.Stopped) == n-len(all)
		}},
		{"hold", faults.Rule{Hold: true, For: 300 * ms}, func(all []got, c faults.Counters) bool {
			return len(all) == n && c.Stopped == n && inOrder(all) && all[0].at == 300*time.Millisecond && all[n-1].at == all[0].at
		}},
		{"later", faults.Rule{Cut: true, After: 100 * ms, For: 50 * ms}, func(all []got, c faults.Counters) bool {
			return len(all) > 145 && len(all) < 155 && c.Stopped > 45
		}},
	}
	for _, tt := range tests {
		for end, name := range []string{"sender", "receiver"} {
			t.Run(tt.name+" at the "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s := openSockets(t)
					tt.r.On, tt.r.From, tt.r.To = faults.Gossip, faults.Nodes{1}, faults.Nodes{2}
					counts := add(t, s.layers[end], tt.r)
					all := s.exchange(n)
					if c := counts(); !tt.check(all, c) {
						t.Errorf("%d packets arrived, in order %v; %+v\n%v", len(all), inOrder(all), c, all[:min(12, len(all))])
					}
					if t.Failed() {
						return
					}
					// The other direction, and another plane's rule, are free.
					s.layers[end].plane.Clear()
					add(t, s.layers[end], faults.Rule{On: faults.Link, Cut: true})
					add(t, s.layers[end], faults.Rule{On: faults.Gossip, From: faults.Nodes{2}, To: faults.Nodes{1}, Cut: true})
					if all := s.exchange(20); len(all) != 20 || !inOrder(all) {
						t.Errorf("after the fault %d of 20 packets arrived", len(all))
					}
				})
			})
		}
	}
}

// TestPacketsThatWaitAreNotLostAtTheEnd closes a socket whose packets a rule
// delays: the network would carry them.
func TestPacketsThatWaitAreNotLostAtTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := openSockets(t)
		add(t, s.layers[0], faults.Rule{On: faults.Gossip, Delay: 500 * ms})
		go func() {
			s.send(0, 5)
			s.conns[0].Close()
		}()
		if all := s.receive(1, 2*time.Second); len(all) != 5 {
			t.Errorf("%d of 5 packets arrived", len(all))
		}
	})
}

// TestReadDeadlinesHold sets and clears deadlines while delayed packets wake the
// reader.
func TestReadDeadlinesHold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := openSockets(t)
		add(t, s.layers[1], faults.Rule{On: faults.Gossip, Delay: 10 * ms})
		go s.send(0, 50)
		for i, want := range []int{0, 41} { // the 10th comes after 19 ms
			start := time.Now()
			wait := []time.Duration{5 * time.Millisecond, 46 * time.Millisecond}[i]
			all := s.receive(1, wait)
			if took := time.Since(start); took != wait || len(all) < want-2 || len(all) > want+2 {
				t.Errorf("%v: %d packets until the deadline of %v, want %d", took, len(all), wait, want)
			}
		}
		s.conns[1].SetReadDeadline(time.Time{})
		if _, _, err := s.conns[1].ReadFrom(make([]byte, 200)); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
		go func() { time.Sleep(time.Second); s.conns[1].Close() }()
		for {
			if _, _, err := s.conns[1].ReadFrom(make([]byte, 200)); err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("read of a closed socket: %v", err)
				}
				return
			}
		}
	})
}

// TestUnknownPeersMeetRulesForAnybody sends to an address that no node has.
func TestUnknownPeersMeetRulesForAnybody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := openSockets(t)
		forgetNames(s.layers[0])
		add(t, s.layers[0], faults.Rule{On: faults.Gossip, To: faults.Nodes{2}, Cut: true})
		if all := s.exchange(5); len(all) != 5 {
			t.Errorf("a rule for node 2 met an unknown peer: %d of 5 arrived", len(all))
		}
		add(t, s.layers[0], faults.Rule{On: faults.Gossip, From: faults.Nodes{1}, Cut: true})
		if all := s.exchange(5); len(all) != 0 {
			t.Errorf("a rule for anybody missed an unknown peer: %d of 5 arrived", len(all))
		}
	})
}

// forgetNames moves the nodes that a layer knows to other addresses.
func forgetNames(l *Layer) {
	for i := range 2 {
		l.plane.Names.SetPlace(addr.UUID{9, byte(i)}, fmt.Sprintf("10.0.0.%d:7000", i+1))
	}
}
