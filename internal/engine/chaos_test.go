package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/rma"
)

// A chaos is a cluster of nodes that die, come back, are cut off from each other
// and removed at random, with applications that check the guarantees:
//
//   - delivered bytes are a prefix of the sent ones, and all after an orderly close;
//   - after a fence or a signal the bytes before it are in the target's memory;
//   - no window gets a byte that its own connection did not send;
//   - when NodeLost returns no call towards that incarnation goes on;
//   - nothing hangs and nothing is left.
type chaos struct {
	t    *testing.T
	net  chaosNet
	seed uint64

	apps  sync.WaitGroup
	done  chan struct{} // closed when applications are to stop
	tally struct{ streams, orderly, fences, signals, refused, lost atomic.Int64 }

	mu      sync.Mutex // guards the fields below
	nodes   []*chaosNode
	convos  map[uint64]*convo
	calls   map[call]int // calls under way
	regions map[*countedRegion]struct{}
}

// A chaosNode is one incarnation of a node.
type chaosNode struct {
	*engine.Node
	peer engine.Peer
	dead bool
}

// A call is one of an application of from towards the incarnation to.
type call struct {
	from, to addr.Incarnation
	what     string
}

// A convo is one connection as the two applications at its ends know it.
type convo struct {
	id       uint64
	from, to addr.Incarnation
	sent     []byte // that the client's node has accepted
	closed   bool   // the client has closed in order
	region   *countedRegion
	mu       sync.Mutex // guards sent and closed
}

const (
	chaosNodes = 4
	chaosPort  = 2000
	regionLen  = 16 * rma.PageSize
)

// A chaosNet is the network of a chaos, with one address for each node.
type chaosNet interface {
	provider(i int) (transport.Provider, error)
	kill(i int, rng *rand.Rand) // without a leave message
	cut(i, j int)
	heal()
	close()
}

// A memNet is a chaosNet in memory.
type memNet struct{ *testNet }

func newMemNet(_ *testing.T, s uint64) chaosNet {
	return memNet{newTestNet(netConfig{Seed: s, Delay: 100 * time.Microsecond, Jitter: 300 * time.Microsecond})}
}

func memAddress(i int) string { return fmt.Sprintf("node%d", i) }

func (n memNet) provider(i int) (transport.Provider, error) {
	return n.Provider(memAddress(i), transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(i + 1)), Host: i == 0})
}

func (n memNet) kill(i int, rng *rand.Rand) {
	n.Kill(memAddress(i), rng.IntN(2) != 0)
}

func (n memNet) cut(i, j int) { n.Cut(memAddress(i), memAddress(j)) }
func (n memNet) heal()        { n.HealAll() }
func (n memNet) close()       {}

// A packetNet is a chaosNet of QUIC over packets in memory.
type packetNet struct {
	*netsim.Network
	quicker *quicker
}

func newPacketNet(t *testing.T, s uint64) chaosNet {
	n := netsim.New(s)
	n.SetDefaultRules(netsim.Rules{Delay: 200 * time.Microsecond, Jitter: 200 * time.Microsecond, Loss: 0.005})
	return packetNet{n, newQuicker(t)}
}

func packetHost(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

func (n packetNet) provider(i int) (transport.Provider, error) {
	conn, err := n.ListenPacket(packetHost(i) + ":7000")
	if err != nil {
		return nil, err
	}
	return n.quicker.provider(i, conn), nil
}

func (n packetNet) kill(i int, _ *rand.Rand) { n.Crash(packetHost(i)) }

func (n packetNet) cut(i, j int) {
	n.SetRules(packetHost(i), packetHost(j), netsim.Rules{Cut: true})
	n.SetRules(packetHost(j), packetHost(i), netsim.Rules{Cut: true})
}

func (n packetNet) heal()  { n.Heal() }
func (n packetNet) close() { n.Close() }

func newChaos(t *testing.T, s uint64, network chaosNet) *chaos {
	c := &chaos{t: t, seed: s, done: make(chan struct{}), net: network,
		convos: make(map[uint64]*convo), calls: make(map[call]int), regions: make(map[*countedRegion]struct{})}
	c.nodes = make([]*chaosNode, chaosNodes)
	for i := range c.nodes {
		c.boot(i, 1)
	}
	return c
}

func (c *chaos) rand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, stream)) }

// boot starts an incarnation of node i and notifies all nodes.
func (c *chaos) boot(i int, gen addr.Generation) {
	p, err := c.net.provider(i)
	if err != nil {
		c.t.Fatal(err)
	}
	incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: gen}
	n := &chaosNode{
		Node: engine.Start(engine.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop()}),
		peer: engine.Peer{Incarnation: incarnation, UUID: uuid(byte(i + 1)), Epoch: uint64(gen), Addresses: []string{p.Addr()}},
	}
	n.SetSelf(engine.Self{Self: attach.Self{Cluster: uuid(0xCC), Incarnation: incarnation}, UUID: n.peer.UUID, Epoch: uint64(gen), Term: 1})
	c.mu.Lock()
	c.nodes[i] = n
	others := append([]*chaosNode(nil), c.nodes...)
	c.mu.Unlock()
	for _, o := range others {
		if o != nil && o != n && !o.dead {
			o.NodeUp(n.peer)
			n.NodeUp(o.peer)
		}
	}
	c.watchEvents(n)
	c.apps.Go(func() { c.server(n) })
	for k := range 3 {
		c.apps.Go(func() { c.client(n, c.rand(uint64(i)<<32|uint64(gen)<<8|uint64(k))) })
	}
}

// watchEvents checks the order of events: of one node, removed and added by
// turns with rising generations.
func (c *chaos) watchEvents(n *chaosNode) {
	last := make(map[addr.NodeID]attach.Event)
	n.NewSession(attach.Credentials{}).Watch(func(ev attach.Event) {
		before, seen := last[ev.Incarnation.Node]
		last[ev.Incarnation.Node] = ev
		switch {
		case !seen:
		case ev.Kind == before.Kind, ev.Kind == attach.NodeAdded && ev.Incarnation.Generation <= before.Incarnation.Generation,
			ev.Kind == attach.NodeRemoved && ev.Incarnation != before.Incarnation:
			c.t.Errorf("node %v: %+v after %+v", n.peer.Incarnation, ev, before)
		}
	})
}

// crash ends an incarnation of node i without a word to the others.
func (c *chaos) crash(i int, rng *rand.Rand) {
	n := c.nodes[i]
	n.dead = true
	c.net.kill(i, rng)
	n.Close()
}

// remove notifies node i that an incarnation is over, and checks that this is true for
// its applications when NodeLost returns.
func (c *chaos) remove(n *chaosNode, incarnation addr.Incarnation) {
	n.NodeLost(incarnation, "test")
	synctest.Wait() // they have been woken; let them return
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, k := range c.calls {
		if k > 0 && call.from == n.peer.Incarnation && call.to == incarnation {
			c.t.Errorf("%s of node %v goes on after node %v was lost", call.what, call.from, incarnation)
		}
	}
}

// during counts a call while it runs.
func (c *chaos) during(what string, from, to addr.Incarnation, f func()) {
	k := call{from, to, what}
	c.mu.Lock()
	c.calls[k]++
	c.mu.Unlock()
	f()
	c.mu.Lock()
	c.calls[k]--
	c.mu.Unlock()
}

// run lets the cluster live for d.
func (c *chaos) run(d time.Duration) {
	rng := c.rand(0)
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		i, j := rng.IntN(chaosNodes), rng.IntN(chaosNodes)
		switch rng.IntN(5) {
		case 0:
			c.net.cut(i, j)
		case 1, 2:
			c.net.heal()
		case 3:
			c.crash(i, rng)
			for _, k := range rng.Perm(chaosNodes) {
				if k != i {
					time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
					c.remove(c.nodes[k], c.nodes[i].peer.Incarnation)
				}
			}
			c.boot(i, c.nodes[i].peer.Incarnation.Generation+1)
		case 4: // removed while alive: it learns that and comes back
			n := c.nodes[i]
			for _, k := range rng.Perm(chaosNodes) {
				if k != i {
					c.remove(c.nodes[k], n.peer.Incarnation)
				}
			}
			n.dead = true
			n.ResetSelf("removed")
			n.Close()
			c.boot(i, n.peer.Incarnation.Generation+1)
		}
	}
	c.net.heal()
	close(c.done)
}

// finish waits for the applications, no longer than virtual minutes.
func (c *chaos) finish() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.apps.Wait()
	}()
	time.Sleep(30 * time.Second) // longer than any time-out of the engine
	for _, n := range c.nodes {
		if !n.dead {
			n.Close()
		}
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		panic("applications hang")
	}
	c.net.close()
	for i, n := range c.nodes {
		if p, conns, w, l := n.Ports(), n.Conns(), n.Windows(), n.Links(); len(p)+len(conns)+len(w)+len(l) > 0 {
			c.t.Errorf("node %d: left are %+v %+v %+v %+v", i, p, conns, w, l)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.regions {
		if k := r.refs.Load(); k != 0 {
			c.t.Errorf("a region has %d references left", k)
		}
		for _, v := range r.p {
			if v != 0 && v != r.tag {
				c.t.Errorf("a window of connection %d holds %d: not its connection's byte", r.tag, v)
				break
			}
		}
	}
}

func (c *chaos) stopped() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// server accepts until its node ends.
func (c *chaos) server(n *chaosNode) {
	s := n.NewSession(attach.Credentials{Admin: true})
	l, err := s.Open()
	if err == nil {
		_, err = l.Bind(chaosPort)
	}
	if err == nil {
		err = l.Listen(16)
	}
	if err != nil {
		return
	}
	for {
		ep, _, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		c.apps.Go(func() { c.serve(n, ep) })
	}
}

// serve is the server's end of one connection. It begins with its number.
func (c *chaos) serve(n *chaosNode, ep attach.NodeEndpoint) {
	defer ep.Close()
	var head [8]byte
	if recvAll(ep, head[:]) != nil {
		return
	}
	id := binary.BigEndian.Uint64(head[:])
	c.mu.Lock()
	v := c.convos[id]
	c.mu.Unlock()
	if v == nil {
		c.t.Errorf("a connection with number %d, which nobody made", id)
		return
	}
	rng := c.rand(id)
	if rng.IntN(2) == 0 {
		c.receive(n, v, ep, rng)
	} else {
		c.expose(n, v, ep)
	}
}

func recvAll(ep attach.NodeEndpoint, p []byte) error {
	for len(p) > 0 {
		n, err := ep.Recv(context.Background(), p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// receive checks a stream.
func (c *chaos) receive(n *chaosNode, v *convo, ep attach.NodeEndpoint, rng *rand.Rand) {
	var got []byte
	buf := make([]byte, 1+rng.IntN(100_000))
	stopAt := 1 << 30
	if rng.IntN(4) == 0 {
		stopAt = rng.IntN(600_000) // closes in the middle
	}
	var err error
	for err == nil && len(got) < stopAt {
		var k int
		c.during("Recv", n.peer.Incarnation, v.from, func() { k, err = ep.Recv(context.Background(), buf) })
		got = append(got, buf[:k]...)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	c.tally.streams.Add(1)
	want := v.stream(max(len(got), len(v.sent)))
	if !bytes.Equal(got, want[:len(got)]) {
		c.t.Errorf("connection %d: %d bytes arrived that are no prefix of what was sent", v.id, len(got))
	}
	if errors.Is(err, io.EOF) {
		c.tally.orderly.Add(1)
		if !v.closed || len(got) != len(v.sent) {
			c.t.Errorf("connection %d: an orderly end after %d of %d bytes, closed %v", v.id, len(got), len(v.sent), v.closed)
		}
	}
}

// stream returns n bytes that only this connection sends.
func (v *convo) stream(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(uint64(i)*uint64(i)*v.id>>5 + uint64(i) + v.id)
	}
	return p
}

// expose lets the client write to a window until it closes, and checks the
// signals.
func (c *chaos) expose(n *chaosNode, v *convo, ep attach.NodeEndpoint) {
	r := c.region(byte(v.id%255) + 1)
	defer r.Release()
	off, err := ep.RegisterRegion(r, 0, regionLen, 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		return
	}
	v.mu.Lock()
	v.region = r
	v.mu.Unlock()
	var b [8]byte
	if _, err := ep.Send(context.Background(), binary.BigEndian.AppendUint64(b[:0], uint64(off))); err != nil {
		return
	}
	for { // the client sends a byte for each signal it has asked for
		var page [1]byte
		c.during("Recv", n.peer.Incarnation, v.from, func() { _, err = ep.Recv(context.Background(), page[:]) })
		if err != nil {
			return
		}
		word := int64(page[0]) * rma.PageSize
		for i := 0; ; i++ {
			got, _ := r.Load(word, 8)
			if got != 0 {
				break
			}
			if i > 20_000 || ep.Ready()&attach.PollHup != 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
		c.tally.signals.Add(1)
		if !bytes.Equal(r.p[word+8:word+rma.PageSize], bytes.Repeat([]byte{r.tag}, rma.PageSize-8)) {
			c.t.Errorf("connection %d: a signal was stored before the bytes it stands for", v.id)
		}
	}
}

// client makes connections until its node ends.
func (c *chaos) client(n *chaosNode, rng *rand.Rand) {
	s := n.NewSession(attach.Credentials{})
	for !c.stopped() {
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		ep, err := s.Open()
		if err != nil {
			return
		}
		c.converse(n, ep, addr.NodeID(rng.IntN(chaosNodes)), rng)
		ep.Close()
		if n.Self().Incarnation.Generation == 0 {
			return
		}
	}
	s.Close()
}

func (c *chaos) converse(n *chaosNode, ep attach.NodeEndpoint, to addr.NodeID, rng *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rng.IntN(8) == 0 {
		time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, cancel)
	}
	before := c.incarnationOf(to)
	begun := time.Now()
	if _, err := ep.Connect(ctx, addr.Addr{Node: to, Port: chaosPort}); err != nil {
		if d := time.Since(begun); d > 11*time.Second {
			c.t.Errorf("connect failed after %v: %v", d, err)
		}
		c.tally.refused.Add(1)
		return
	}
	incarnation := c.incarnationOf(to)
	if incarnation != before {
		return // not clear which of the two it reached
	}
	v := &convo{id: rng.Uint64() | 1, from: n.peer.Incarnation, to: incarnation}
	c.mu.Lock()
	c.convos[v.id] = v
	c.mu.Unlock()
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], v.id)
	if _, err := ep.Send(context.Background(), head[:]); err != nil {
		return
	}
	if c.rand(v.id).IntN(2) == 0 {
		c.send(v, ep, rng)
	} else {
		c.write(v, ep, rng)
	}
}

func (c *chaos) incarnationOf(id addr.NodeID) addr.Incarnation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[id] == nil { // at the very beginning
		return addr.Incarnation{}
	}
	return c.nodes[id].peer.Incarnation
}

// send sends a stream and closes.
func (c *chaos) send(v *convo, ep attach.NodeEndpoint, rng *rand.Rand) {
	all := v.stream(rng.IntN(600_000))
	for at := 0; at < len(all); {
		k := min(len(all)-at, 1+rng.IntN(150_000))
		var n int
		var err error
		v.mu.Lock()
		v.sent = all[:at+k] // at most
		v.mu.Unlock()
		c.during("Send", v.from, v.to, func() {
			if rng.IntN(3) == 0 {
				n, err = ep.TrySend(all[at : at+k])
			} else {
				n, err = ep.Send(context.Background(), all[at:at+k])
			}
		})
		at += n
		v.mu.Lock()
		v.sent = all[:at]
		v.mu.Unlock()
		if err != nil {
			c.tally.lost.Add(1)
			return
		}
		if n == 0 || rng.IntN(5) == 0 {
			time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		}
	}
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
}

// write fills pages of the server's window, each behind a fence or a signal.
func (c *chaos) write(v *convo, ep attach.NodeEndpoint, rng *rand.Rand) {
	var b [8]byte
	var err error
	c.during("Recv", v.from, v.to, func() { err = recvAll(ep, b[:]) })
	if err != nil {
		return
	}
	off := int64(binary.BigEndian.Uint64(b[:]))
	v.mu.Lock()
	r := v.region
	v.mu.Unlock()
	page := bytes.Repeat([]byte{r.tag}, rma.PageSize-8)
	for k := range int64(regionLen / rma.PageSize) {
		at := off + k*rma.PageSize
		var flags rma.Flags
		if rng.IntN(3) == 0 {
			flags = rma.Sync
		}
		c.during("VWriteTo", v.from, v.to, func() { err = ep.VWriteTo(page, at+8, flags) })
		if err != nil {
			return
		}
		if rng.IntN(2) == 0 {
			c.during("fence", v.from, v.to, func() { err = fenced(ep) })
			if err != nil {
				return
			}
			c.tally.fences.Add(1)
			if !bytes.Equal(r.p[k*rma.PageSize+8:(k+1)*rma.PageSize], page) {
				c.t.Errorf("connection %d: a fence came before the bytes of page %d", v.id, k)
			}
			continue
		}
		word := uint64(r.tag) * 0x0101010101010101
		c.during("FenceSignal", v.from, v.to, func() {
			err = ep.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: at, RemoteValue: word})
		})
		if err != nil {
			return
		}
		c.during("Send", v.from, v.to, func() { _, err = ep.Send(context.Background(), []byte{byte(k)}) })
		if err != nil {
			return
		}
	}
}

// A countedRegion is window memory whose references are counted, and that only
// the byte tag is to be written to.
type countedRegion struct {
	attach.Region
	p    []byte
	tag  byte
	refs atomic.Int64
}

func newCountedRegion(tb testing.TB, tag byte) *countedRegion {
	r, err := newRegion(regionLen)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Release)
	return &countedRegion{Region: r, p: r.Bytes(), tag: tag}
}

func (c *chaos) region(tag byte) *countedRegion {
	r := newCountedRegion(c.t, tag)
	r.refs.Store(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regions[r] = struct{}{}
	return r
}

func (r *countedRegion) Retain() { r.refs.Add(1) }

func (r *countedRegion) Release() {
	if r.refs.Add(-1) < 0 {
		panic("BUG: region released too often")
	}
}

// TestRandomProgramsUnderFaults runs chaoses in memory, TestRandomProgramsOverQUIC
// over lossy packets.
func TestRandomProgramsUnderFaults(t *testing.T) { runChaos(t, newMemNet, 2, 2*time.Second) }

func TestRandomProgramsOverQUIC(t *testing.T) { runChaos(t, newPacketNet, 1, 1500*time.Millisecond) }

func runChaos(t *testing.T, network func(*testing.T, uint64) chaosNet, seeds uint64, d time.Duration) {
	s := seed(t)
	for i := range seeds {
		bubble.Test(t, func(t *testing.T) {
			c := newChaos(t, s+i, network(t, s+i))
			c.run(d)
			c.finish()
			y := &c.tally
			t.Logf("seed %d: %d streams, %d orderly ends, %d fences, %d signals, %d refused, %d lost", s+i, y.streams.Load(),
				y.orderly.Load(), y.fences.Load(), y.signals.Load(), y.refused.Load(), y.lost.Load())
			if y.streams.Load() == 0 || y.orderly.Load() == 0 || y.fences.Load() == 0 || y.signals.Load() == 0 {
				t.Error("the program did not do everything that it is to check")
			}
		})
	}
}
