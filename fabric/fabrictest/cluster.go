// Package fabrictest runs clusters of fabricd nodes inside a test: real
// engines, a network in memory, and calls that kill, stop, restart and
// separate nodes. Everything works inside a testing/synctest bubble, where
// timeouts cost nothing, and outside of one. Bubbles with the race detector need
// GOMAXPROCS=1: with more, golang/go#78156 ends the process now and then.
//
//	c := fabrictest.NewCluster(t, 3)
//	l, err := c.Node(0).Listen(2050)
//	conn, err := c.Node(1).Dial(ctx, "0:2050")
//	c.Kill(0) // conn fails with ECONNRESET, then NodeRemoved
//
// The test itself is the cluster's membership: only calls of the test remove a
// node, and when Kill, Stop, Evict or Restart returns, every node has been
// notified. With [QUIC] the nodes communicate over sockets on the loopback
// interface instead, with TLS.
package fabrictest

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// A Cluster is a set of nodes with the IDs 0, 1, 2, …; node 0 is the host. Its
// methods may be called from any goroutine.
type Cluster struct {
	tb      reporter
	opts    options
	network network
	id      addr.UUID
	size    int
	kills   sync.WaitGroup // of crashes at a step
	paths   sync.Map       // engines (*engine.Node) by the address of their links, for paths
	accepts sync.WaitGroup // of paths
	names   names
	journal *journal

	mu    sync.Mutex // held for whole changes of the membership; guards members
	nodes []*member
	apps  []*fabric.Node // of all runs
}

// A member is one node in all its incarnations. Guarded by Cluster.mu.
type member struct {
	peer   engine.Peer
	engine *engine.Node // nil while the node is down
	faults *failpoint.Node
	layer  *inject.Layer // of all incarnations: where its links are broken
	actor  *actor        // of faults
	apps   *apps         // of engine
	app    *fabric.Node  // of its latest incarnation
}

// NewCluster starts a cluster of n nodes that know each other. It ends with
// tb, which fails if the cluster cannot be ended.
func NewCluster(tb testing.TB, n int, opts ...Option) *Cluster {
	tb.Helper()
	c := newCluster(tb, n, opts)
	tb.Cleanup(c.end)
	return c
}

// Start is NewCluster for examples and programs, which have no testing.TB. It
// panics where a test would fail. The caller closes the cluster.
func Start(n int, opts ...Option) *Cluster { return newCluster(panics{}, n, opts) }

// Close ends all nodes and waits until nothing of them is left. A cluster of
// NewCluster ends by itself.
func (c *Cluster) Close() { c.end() }

// A reporter receives failures.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// panics is the reporter of clusters without a test.
type panics struct{}

func (panics) Helper() {}

func (panics) Errorf(format string, args ...any) { panic("BUG: " + fmt.Sprintf(format, args...)) }

func (p panics) Fatalf(format string, args ...any) { p.Errorf(format, args...) }

func newCluster(tb reporter, n int, opts []Option) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, id: addr.UUID{0xfa, 0xb1}, size: n, journal: newJournal()}
	c.opts.faultSeed = 1
	for _, o := range opts {
		o(&c.opts)
	}
	if c.opts.delays() {
		c.breaks()
	}
	c.network = memory{mem.NewHub(mem.Config{})}
	if c.opts.quic || c.opts.tcp {
		c.network = newLoopback(c.opts)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n {
		m := &member{peer: engine.Peer{
			Incarnation: addr.Incarnation{Node: addr.NodeID(i)},
			UUID:        nodeUUID(i),
			Name:        fmt.Sprintf("node-%d", i),
			Labels:      c.opts.labels[i],
		}, layer: inject.New(faults.NewPlane(faults.Options{Seed: c.opts.faultSeed + uint64(i)}))}
		m.layer.Plane().SetSelf(addr.NodeID(i))
		c.delay(m.layer.Plane())
		c.nodes = append(c.nodes, m)
		c.startLocked(m)
	}
	for _, m := range c.nodes {
		c.introduceLocked(m)
		m.app = c.appLocked(m, true)
	}
	c.names.send()
	return c
}

// nodeUUID is node i's identity in all its incarnations.
func nodeUUID(i int) addr.UUID {
	u := addr.UUID{0xfa, 0xb2}
	binary.BigEndian.PutUint32(u[12:], uint32(i))
	return u
}

// startLocked starts m's next incarnation. The other nodes are not notified yet.
func (c *Cluster) startLocked(m *member) {
	c.tb.Helper()
	m.peer.Incarnation.Generation++
	m.peer.Epoch++
	layer := m.layer
	if c.opts.unbroken {
		layer = nil
	}
	providers, err := c.network.join(c.identity(m), layer)
	if err != nil {
		c.tb.Fatalf("fabrictest: start node %d: %v", m.peer.Incarnation.Node, err)
	}
	m.peer.Addresses = []string{providers[0].Addr()}
	for _, other := range c.nodes {
		c.acquaint(m, other)
		c.acquaint(other, m)
	}
	m.actor = &actor{c: c, i: int(m.peer.Incarnation.Node), incarnation: m.peer.Incarnation,
		links: m.layer.Plane(), gone: make(chan struct{})}
	m.faults = failpoint.New(m.actor)
	cfg := c.opts.engine(providers, m.faults)
	if c.opts.paths {
		cfg.Paths = &engine.PathNetwork{Dial: c.dialPath, Plaintext: c.opts.plaintext}
	}
	cfg.ServesAnew = c.names.send
	m.engine = engine.Start(cfg)
	if m.apps, err = newApps(m.engine); err != nil {
		c.tb.Fatalf("fabrictest: start node %d: %v", m.peer.Incarnation.Node, err)
	}
	c.names.join(m.engine)
	c.paths.Store(providers[0].Addr(), m.engine)
	m.engine.SetSelf(c.selfLocked(m))
	c.journal.change(func(j *journal) { j.alive[m.run()] = true })
	c.journal.follow(m.run(), m.engine)
}

// acquaint gives other's ID and addresses to the layer that breaks m's links.
func (c *Cluster) acquaint(m, other *member) {
	names := &m.layer.Plane().Names
	names.SetID(other.peer.UUID, other.peer.Incarnation.Node)
	for _, address := range other.peer.Addresses {
		names.SetPlace(other.peer.UUID, address)
	}
}

func (c *Cluster) selfLocked(m *member) engine.Self {
	return engine.Self{
		Self:   attach.Self{Cluster: c.id, Incarnation: m.peer.Incarnation, Name: m.peer.Name},
		UUID:   m.peer.UUID,
		Epoch:  m.peer.Epoch,
		Term:   1,
		Labels: m.peer.Labels,
	}
}

// introduceLocked notifies m of every other node that is up.
func (c *Cluster) introduceLocked(m *member) {
	for other := range c.othersLocked(m) {
		m.engine.NodeUp(other.peer)
	}
}

// announceLocked notifies every other node that is up of m.
func (c *Cluster) announceLocked(m *member) {
	for other := range c.othersLocked(m) {
		other.engine.NodeUp(m.peer)
	}
}

// othersLocked returns the nodes that are up, without m.
func (c *Cluster) othersLocked(m *member) iter.Seq[*member] {
	return func(yield func(*member) bool) {
		for _, other := range c.nodes {
			if other != m && other.engine != nil && !yield(other) {
				return
			}
		}
	}
}

// lostLocked notifies every other node that is up of the end of m's incarnation.
func (c *Cluster) lostLocked(m *member, reason string) {
	var notified []run
	for other := range c.othersLocked(m) {
		notified = append(notified, other.run())
	}
	c.journal.change(func(j *journal) { j.lost[int(m.peer.Incarnation.Node)] = loss{m.peer.Incarnation, notified} })
	for other := range c.othersLocked(m) {
		other.engine.NodeLost(m.peer.Incarnation, reason)
	}
}

// Node returns an application on node i that may bind any port. It is the same
// one in every call until the node is restarted.
func (c *Cluster) Node(i int) *fabric.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i].app
}

// App returns another application on node i, which must be up. Without admin
// it may not bind ports below fabric.AdminEnd. It ends with Node.Close or with
// the node.
func (c *Cluster) App(i int, admin bool) *fabric.Node {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		c.tb.Fatalf("fabrictest: App on node %d, which is down", i)
	}
	return c.appLocked(m, admin)
}

func (c *Cluster) appLocked(m *member, admin bool) *fabric.Node {
	c.tb.Helper()
	app, err := m.apps.attach(admin)
	if err != nil {
		c.tb.Fatalf("fabrictest: attach to node %d: %v", m.peer.Incarnation.Node, err)
	}
	c.apps = append(c.apps, app)
	return app
}

func init() {
	hook.Session = func(cluster any, i int, cred attach.Credentials) attach.NodeSession {
		return cluster.(*Cluster).session(i, cred)
	}
}

// session returns a new session on node i, which must be up.
func (c *Cluster) session(i int, cred attach.Credentials) attach.NodeSession {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		c.tb.Fatalf("fabrictest: Session on node %d, which is down", i)
	}
	return m.engine.NewSession(cred)
}

// Kill ends node i as a crash does: it notifies no node, bytes that it has sent
// may be lost before they are received, and its own applications' calls fail. When
// Kill returns, every call of the other nodes towards it has failed and NodeRemoved
// is on its way, with the reason "crashed". A node that is down stays down.
func (c *Cluster) Kill(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		return
	}
	c.killLocked(m)
}

func (c *Cluster) killLocked(m *member) {
	c.isolate(m.layer.Plane())
	c.lostLocked(m, "crashed")
	m.layer.Plane().RemoveNamed(isolation) // the others receive nothing from it any more; its own calls end
	c.closeLocked(m)
}

// closeLocked ends the engine of a member whose end all other nodes know.
func (c *Cluster) closeLocked(m *member) {
	close(m.actor.gone)
	m.faults.Close() // goroutines at a step go on; a test cluster's faults undo nothing that can fail
	m.engine.Close()
	m.apps.close()
	c.names.leave(m.engine)
	m.engine = nil
	c.journal.change(func(j *journal) { delete(j.alive, m.run()) })
}

// Stop ends node i in order: its applications' endpoints are ended, the bytes that they sent
// are delivered, followed by ECONNRESET where they have not closed, and then the others see
// NodeRemoved with the reason "left". A node that is down stays down.
func (c *Cluster) Stop(i int) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := m.engine.Leave(ctx); err != nil {
		c.tb.Errorf("fabrictest: stop node %d: %v", i, err)
	}
	c.lostLocked(m, "left")
	c.closeLocked(m)
}

// Restart starts node i again, after a Kill if it is up: the same ID, the next
// generation. The others see NodeAdded. It returns the new incarnation's application,
// which Node returns from then on.
func (c *Cluster) Restart(i int) *fabric.Node {
	c.tb.Helper()
	c.Kill(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	c.startLocked(m)
	c.introduceLocked(m)
	m.app = c.appLocked(m, true)
	c.announceLocked(m)
	c.names.send()
	return m.app
}

// Evict removes node i, which is up, although it is alive: the others see
// NodeRemoved with the reason "silent"; its own applications' connections are
// reset, and it comes back at once with the next generation, its applications
// still attached.
func (c *Cluster) Evict(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[i]
	if m.engine == nil {
		return
	}
	c.lostLocked(m, "silent")
	m.engine.ResetSelf("removed by the others")
	m.peer.Incarnation.Generation++
	m.engine.SetSelf(c.selfLocked(m))
	c.announceLocked(m)
	c.names.send()
}

// Partition lets nothing pass any more between the nodes of side and all
// others. No node is removed: connections across stall, and end with ECONNRESET
// when their link has been silent too long, as they do for a pair that has
// lost only each other.
func (c *Cluster) Partition(side ...int) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var in, out []int
	for i := range c.nodes {
		if slices.Contains(side, i) {
			in = append(in, i)
		} else {
			out = append(out, i)
		}
	}
	if len(in) > 0 && len(out) > 0 {
		c.partitionLocked(Symmetric, in, out)
	}
}

// Heal ends every Partition and every fault of links.
func (c *Cluster) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unbreakLocked()
}

// closeTimeout is how long an end may take before the reason why it hangs is
// reported to the test.
const closeTimeout = 10 * time.Second

// end ends all nodes and waits until nothing of them is left. A second end does
// nothing.
func (c *Cluster) end() {
	watch := time.AfterFunc(closeTimeout, func() {
		buf := make([]byte, 1<<20)
		c.tb.Errorf("fabrictest: the cluster does not end; goroutines:\n%s", buf[:runtime.Stack(buf, true)])
	})
	defer watch.Stop()
	defer c.kills.Wait()
	c.accepts.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unbreakLocked()
	for _, m := range c.nodes {
		if m.engine != nil {
			c.closeLocked(m)
		}
		m.layer.Close()
	}
	for _, app := range c.apps {
		app.Close()
	}
	if err := c.network.close(); err != nil {
		c.tb.Errorf("fabrictest: %v", err)
	}
}
