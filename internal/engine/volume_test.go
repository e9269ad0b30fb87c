package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/rma"
)

// TestManyMessagesAreExactOverABadNetwork sends messages over connections of two
// nodes, in both directions, while packets are lost, come twice, are damaged and
// overtake each other: every byte arrives once, in its place. VOLUME is how many
// messages.
func TestManyMessagesAreExactOverABadNetwork(t *testing.T) {
	const conns = 8
	usual := 100_000
	if raceEnabled {
		usual = 10_000
	}
	each := (setting(t, "VOLUME", usual) + 2*conns - 1) / (2 * conns)
	s := seed(t)
	bubble.Test(t, func(t *testing.T) {
		net := badNet(t, s)
		defer net.close()
		nodes := couple(t, net)
		var all sync.WaitGroup
		var total [2 * conns]int64
		for i := range conns {
			a, b := coupled(t, nodes, addr.Port(2000+i))
			for j, way := range [][2]attach.NodeEndpoint{{a, b}, {b, a}} {
				stream := uint64(2*i + j)
				all.Go(func() { total[stream] = pour(t, way[0], stream, each, rand.New(rand.NewPCG(s, stream))) })
				all.Go(func() { drain(t, way[1], stream, each, rand.New(rand.NewPCG(s, stream))) })
			}
		}
		all.Wait()
		sum := int64(0)
		for _, n := range total {
			sum += n
		}
		t.Logf("%d messages, %d bytes", 2*conns*each, sum)
		net.wasBad(t)
		for _, n := range nodes {
			n.Close()
		}
	})
}

// TestManyTransfersAreExactOverABadNetwork writes and reads windows of two nodes, in
// both directions, over such a network: the bytes read back, and those in the peer's
// memory, are the bytes that were written last. VOLUME_RMA is how many bytes.
func TestManyTransfersAreExactOverABadNetwork(t *testing.T) {
	usual := 64 << 20
	if raceEnabled {
		usual = 4 << 20
	}
	const conns = 4
	each := int64(setting(t, "VOLUME_RMA", usual)) / (2 * conns)
	s := seed(t)
	bubble.Test(t, func(t *testing.T) {
		net := badNet(t, s)
		defer net.close()
		nodes := couple(t, net)
		var all sync.WaitGroup
		for i := range conns {
			a, b := coupled(t, nodes, addr.Port(2000+i))
			for j, way := range [][2]attach.NodeEndpoint{{a, b}, {b, a}} {
				memory := alloc(t, maxTransfer)
				off, err := register(way[1], memory, 0, rma.ProtRead|rma.ProtWrite, 0)
				if err != nil {
					t.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(s, uint64(2*i+j)))
				all.Go(func() { transfer(t, way[0], off, memory, each, rng) })
			}
		}
		all.Wait()
		net.wasBad(t)
		for _, n := range nodes {
			n.Close()
		}
	})
}

// maxTransfer is the size of a window, and of the largest transfer.
const maxTransfer = 1 << 20

// transfer writes random parts of a window and reads others back until each bytes
// are moved. Reads are of this initiator too: they return the bytes it wrote before.
func transfer(t *testing.T, ep attach.NodeEndpoint, off int64, far []byte, each int64, rng *rand.Rand) {
	model, buf := make([]byte, maxTransfer), make([]byte, maxTransfer)
	for round, moved := 0, int64(0); moved < each; round++ {
		n := 1 + rng.Int64N(1<<(3+rng.IntN(18)))
		at := rng.Int64N(maxTransfer - n + 1)
		part := model[at : at+n]
		if moved += n; round%3 == 2 {
			if err := ep.VReadFrom(buf[:n], off+at, rma.Sync); err != nil || !bytes.Equal(buf[:n], part) {
				t.Errorf("round %d: [%d, +%d) was read back otherwise, %v", round, at, n, err)
				return
			}
			continue
		}
		for i := range part {
			part[i] = byte(uint64(round)*0x9E3779B97F4A7C15>>32) ^ byte(at+int64(i))
		}
		if err := ep.VWriteTo(part, off+at, rma.Sync); err != nil || !bytes.Equal(far[at:at+n], part) {
			t.Errorf("round %d: the peer's memory has not what was written to [%d, +%d), %v", round, at, n, err)
			return
		}
	}
	if !bytes.Equal(far, model) {
		t.Error("the peer's memory is not what was written in all")
	}
}

// badNet returns a network as the criterion of exactness has it.
func badNet(t *testing.T, seed uint64) packetNet {
	net := newPacketNet(t, seed).(packetNet)
	net.SetDefaultRules(netsim.Rules{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.05, Duplicate: 0.05, Reorder: 0.25, Corrupt: 0.01})
	return net
}

// wasBad fails unless packets were lost, duplicated, reordered and corrupted.
func (p packetNet) wasBad(t *testing.T) {
	t.Helper()
	k := p.Counters()
	t.Logf("%+v", k)
	if k.Lost == 0 || k.Duplicated == 0 || k.Reordered == 0 || k.Corrupted == 0 {
		t.Errorf("the network was good: %+v", k)
	}
}

// couple starts two nodes that know each other.
func couple(t *testing.T, net chaosNet) (nodes [2]*engine.Node) {
	t.Helper()
	var peers [2]engine.Peer
	for i := range nodes {
		p, err := net.provider(i)
		if err != nil {
			t.Fatal(err)
		}
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		nodes[i] = engine.Start(engine.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop()})
		peers[i] = engine.Peer{Incarnation: incarnation, UUID: uuid(byte(i + 1)), Epoch: 1, Addresses: []string{p.Addr()}}
		nodes[i].SetSelf(engine.Self{Self: attach.Self{Cluster: uuid(0xCC), Incarnation: incarnation}, UUID: peers[i].UUID, Epoch: 1, Term: 1})
	}
	nodes[0].NodeUp(peers[1])
	nodes[1].NodeUp(peers[0])
	return nodes
}

// coupled connects the nodes.
func coupled(t *testing.T, nodes [2]*engine.Node, port addr.Port) (near, far attach.NodeEndpoint) {
	t.Helper()
	l, err := nodes[1].NewSession(attach.Credentials{}).Open()
	if err == nil {
		_, err = l.Bind(port)
	}
	if err == nil {
		err = l.Listen(1)
	}
	if err == nil {
		near, err = nodes[0].NewSession(attach.Credentials{}).Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	var connecting sync.WaitGroup
	connecting.Go(func() {
		if _, err := near.Connect(context.Background(), addr.Addr{Node: 1, Port: port}); err != nil {
			t.Error(err)
		}
	})
	far, _, err = l.Accept(context.Background())
	connecting.Wait()
	if err != nil || t.Failed() {
		t.Fatal("no connection: ", err)
	}
	return near, far
}

// maxMessage is the largest message of a stream.
const maxMessage = 96

// message fills the n-th message of a stream: its size follows from rng, its
// bytes from the stream and their position.
func message(p []byte, rng *rand.Rand, stream uint64, pos int64) []byte {
	p = p[:1+rng.IntN(maxMessage)]
	var word [8]byte
	for i := range p {
		at := uint64(pos) + uint64(i)
		if i == 0 || at%8 == 0 {
			binary.LittleEndian.PutUint64(word[:], (stream<<56^at/8)*0x9E3779B97F4A7C15)
		}
		p[i] = word[at%8]
	}
	return p
}

// pour sends the messages of a stream and returns how many bytes they are.
func pour(t *testing.T, ep attach.NodeEndpoint, stream uint64, count int, rng *rand.Rand) (pos int64) {
	buf := make([]byte, maxMessage)
	for range count {
		p := message(buf, rng, stream, pos)
		if n, err := ep.Send(context.Background(), p); n != len(p) || err != nil {
			t.Errorf("stream %d at %d: Send = %d, %v", stream, pos, n, err)
			return pos
		}
		pos += int64(len(p))
	}
	return pos
}

// drain receives the messages of a stream.
func drain(t *testing.T, ep attach.NodeEndpoint, stream uint64, count int, rng *rand.Rand) {
	want, got := make([]byte, maxMessage), make([]byte, maxMessage)
	pos := int64(0)
	in := received{ep}
	for i := range count {
		w := message(want, rng, stream, pos)
		if _, err := io.ReadFull(in, got[:len(w)]); err != nil {
			t.Errorf("stream %d, message %d: %v", stream, i, err)
			return
		}
		if string(got[:len(w)]) != string(w) {
			t.Errorf("stream %d, message %d, at %d: other bytes than were sent", stream, i, pos)
			return
		}
		pos += int64(len(w))
	}
}

// received reads the bytes that an endpoint receives.
type received struct{ ep attach.NodeEndpoint }

func (r received) Read(p []byte) (int, error) { return r.ep.Recv(context.Background(), p) }
