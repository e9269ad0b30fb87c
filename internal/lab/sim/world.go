package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A world is a whole cluster on virtual time: machines, the network between them, and
// the history of the run. Everything random comes from its seed, so a seed is a run.
type world struct {
	clock
	seed    uint64
	rng     *rand.Rand // of draws that belong to no single object
	timing  verdict.Timing
	partial verdict.PartialPolicy
	cluster addr.UUID
	load    plan

	net       *network
	gossip    *gossip
	machines  []*machine
	byAddress map[string]*machine
	watch     watch
	log       recorder
}

// A machine is a node of the scenario: a place with a disk, where one fabricd and one
// application run at a time.
type machine struct {
	index int
	host  bool
	disk  disk
	id    addr.NodeID // the last one that it had, as in a directory

	proc   *proc // the fabricd; nil: none runs
	starts int   // of the fabricd
	app    *app
	// appRuns counts the starts of the application.
	appRuns int
	armed   []*trap
}

// A trap is a fault at a named step, armed on one machine.
type trap struct {
	step failpoint.Step
	failpoint.Trigger
	until   time.Duration // 0: no end
	spring  func(p *proc) // the effect
	stopped bool
}

func newWorld(seed uint64, nodes int, timing verdict.Timing, opts Options) *world {
	w := &world{seed: seed, timing: timing, rng: seeded(seed, "world"), byAddress: make(map[string]*machine)}
	w.cluster = w.uuid()
	w.net = newNetwork(w)
	w.gossip = newGossip(w)
	w.watch.w = w
	w.watch.init()
	for i := range nodes {
		m := &machine{index: i, host: i == 0, id: addr.NodeID(i)}
		w.wipe(m)
		w.machines = append(w.machines, m)
		w.byAddress[m.address()] = m
	}
	if opts.IDs > 0 {
		w.useUp(addr.NodeID(opts.IDs))
	}
	return w
}

// useUp leaves the host only the IDs up to one.
func (w *world) useUp(last addr.NodeID) {
	for id := last + 1; id < addr.FirstReserved; id++ {
		w.machines[0].disk.leases[id] = verdict.Lease{ID: id, UUID: w.uuid(), Generation: ^addr.Generation(0), State: verdict.LeaseFree}
	}
}

// address is where the machine's fabricd listens.
func (m *machine) address() string {
	return fmt.Sprintf("10.77.%d.%d:7400", m.index/250, m.index%250+1)
}

// uuid returns an identity that is never given twice.
func (w *world) uuid() (u addr.UUID) {
	binary.BigEndian.PutUint64(u[:], w.rng.Uint64())
	binary.BigEndian.PutUint64(u[8:], w.rng.Uint64()|1)
	return u
}

// wipe gives the machine an empty disk: another machine in its place.
func (w *world) wipe(m *machine) {
	m.disk = disk{uuid: w.uuid(), resetKey: w.rng.Uint64(), leases: make(map[addr.NodeID]verdict.Lease)}
}

// boot starts a fabricd on m.
func (w *world) boot(m *machine) {
	if m.proc != nil {
		return
	}
	m.starts++
	m.disk.epochs++
	p := newProc(w, m, "daemon")
	p.epoch, p.resetKey = m.disk.epochs, m.disk.resetKey
	if m.host && m.disk.broken() {
		w.did(p.source(), history.DidStart, "")
		w.did(p.source(), history.DidExit, "the term cannot be written")
		return
	}
	m.proc = p
	p.node = newNode(p)
	p.agent = newAgent(p)
	w.did(p.source(), history.DidStart, "")
	w.gossip.changed()
	p.agent.run()
}

func (p *proc) source() history.Source { return history.Daemon(p.at.index, p.at.starts) }

// kill ends the fabricd of m with no leave message. It reports false if none runs.
func (w *world) kill(m *machine, did history.Did, detail string) bool {
	p := m.proc
	if p == nil {
		return false
	}
	w.did(p.source(), did, detail)
	m.proc = nil
	p.kill()
	w.gossip.changed()
	return true
}

// exit ends the process by itself, because of why.
func (p *proc) exit(why string) {
	if !p.dead && p.at.proc == p {
		p.w.kill(p.at, history.DidExit, why)
	}
}

// freeze stops the fabricd of m, and thaw lets it go on.
func (w *world) freeze(m *machine) bool {
	if m.proc == nil || m.proc.paused {
		return false
	}
	m.proc.stop()
	w.did(m.proc.source(), history.DidStop, "")
	w.gossip.changed()
	return true
}

func (w *world) thaw(m *machine) {
	if p := m.proc; p != nil && p.paused {
		w.did(p.source(), history.DidContinue, "")
		w.gossip.changed()
		p.proceed()
	}
}

// step marks that the process is at a step of the protocol. It reports false if the
// process is dead.
func (p *proc) step(s failpoint.Step) bool {
	if p.dead {
		return false
	}
	if len(p.at.armed) == 0 || s == 0 {
		return true
	}
	for _, t := range p.at.armed {
		if t.step == s && !t.stopped && (t.until == 0 || p.w.now <= t.until) && t.Pass() {
			t.spring(p)
		}
	}
	return !p.dead
}

// whole reports whether all running processes form one cluster: each has a
// incarnation, and its engine knows exactly the others.
func (w *world) whole() bool {
	incarnations := make(map[addr.Incarnation]bool)
	for _, m := range w.machines {
		if p := m.proc; p != nil {
			l := p.node.self.Incarnation
			if l.Generation == 0 || p.paused || p.agent.member.Alone() {
				return false
			}
			incarnations[l] = true
		}
	}
	for _, m := range w.machines {
		if m.proc == nil {
			continue
		}
		if len(m.proc.node.peers) != len(incarnations)-1 {
			return false
		}
		for _, id := range sortedKeys(m.proc.node.peers) {
			if !incarnations[m.proc.node.peers[id].identity.Incarnation] {
				return false
			}
		}
	}
	return true
}

// A plan is the workload of the applications in this run.
type plan struct {
	load.Plan
	peers [][]int // by node index: the peers that its application connects to
}

// A watch detects violations that no history shows: states that two honest nodes, an
// engine or a disk must never reach. It writes each as a line of a log that no run may
// have.
type watch struct {
	w     *world
	owner map[addr.Incarnation]verdict.Start // the start that each incarnation was granted to
	// unwritten are the incarnations whose end the disk refused: it is reported all the same.
	unwritten map[addr.Incarnation]bool
	bugs      int
	// incarnations and events count the incarnations that began, and the reports of beginnings and
	// ends to nodes.
	incarnations, events uint64
}

func (x *watch) init() {
	x.owner, x.unwritten = make(map[addr.Incarnation]verdict.Start), make(map[addr.Incarnation]bool)
}

// refused notes a write of the lease table that failed.
func (x *watch) refused(p verdict.Persist) {
	for _, l := range p.Leases {
		x.unwritten[l.Incarnation()] = true
	}
}

// bug writes down that an invariant is broken.
func (x *watch) bug(format string, args ...any) { x.at(history.Daemon(0, 1), format, args...) }

func (x *watch) at(target history.Source, format string, args ...any) {
	x.bugs++
	x.w.put(history.Lab, &history.Logged{Target: target, Line: "BUG: " + fmt.Sprintf(format, args...)})
}

// protocol writes down that a node broke the protocol in the eyes of another:
// all of them are honest.
func (x *watch) protocol(l *link, err error) {
	x.at(l.n.p.source(), "peer %v broke the protocol: %v", l.peer.Incarnation, err)
}

// applies checks that an operation of a peer is applied only within the fence
// time after the peer's process had that incarnation.
func (x *watch) applies(l *link) {
	p := l.sess.peer().p
	if p.node.self.Incarnation == l.peer.Incarnation && !p.dead {
		return
	}
	if gone := x.w.now - p.incarnationEnded; gone > fenceTime {
		x.at(l.n.p.source(), "an operation of %v is applied %v after that incarnation ended", l.peer.Incarnation, gone)
	}
}

// stored checks a write of the lease table before it takes effect.
func (x *watch) stored(a *agent, p verdict.Persist) {
	d := &a.at.disk
	for _, l := range p.Leases {
		if old := d.leases[l.ID]; old.Generation > l.Generation {
			x.at(a.p.source(), "the record of node %d goes back from generation %d to %d", l.ID, old.Generation, l.Generation)
		}
	}
}

// granted checks a Grant as it leaves the host: it is on disk, and no other node ever
// had it.
func (x *watch) granted(a *agent, s verdict.SessionID, g verdict.Grant) {
	who := verdict.Start{UUID: g.UUID, Epoch: g.Epoch}
	old, ok := x.owner[g.Incarnation]
	if ok && old != who {
		x.at(a.p.source(), "incarnation %v is given to start %d of node %v, and was given to start %d of node %v", g.Incarnation, who.Epoch, who.UUID, old.Epoch, old.UUID)
	}
	if x.owner[g.Incarnation] = who; !ok {
		x.incarnations++
	}
	if s == verdict.LocalSession {
		return
	}
	if l, ok := a.at.disk.leases[g.Incarnation.Node]; !ok || l.Generation != g.Incarnation.Generation || l.State != verdict.LeaseActive {
		x.at(a.p.source(), "%v is granted but the disk says %+v", g.Incarnation, l)
	}
}

// event checks the removals that membership of a node reports: at the host, they are on
// disk.
func (x *watch) event(a *agent, e verdict.Event) {
	a.reported.check(a, e)
	if e.Kind != verdict.EventRemoved || a.host == nil || e.Node.Incarnation.Node == addr.Host || x.unwritten[e.Node.Incarnation] {
		return
	}
	l := a.at.disk.leases[e.Node.Incarnation.Node]
	if l.Generation < e.Node.Incarnation.Generation || l.Generation == e.Node.Incarnation.Generation && l.State == verdict.LeaseActive {
		x.at(a.p.source(), "the end of %v is reported and not on disk: %+v", e.Node.Incarnation, l)
	}
}

var eventKinds = map[verdict.EventKind]history.EventKind{verdict.EventAdded: history.EventAdded, verdict.EventRemoved: history.EventRemoved,
	verdict.EventSelf: history.EventSelf, verdict.EventReset: history.EventReset, verdict.EventHost: history.EventHost}

// recordOf is an event as the log of its observer has it.
func recordOf(e verdict.Event, observer addr.Incarnation) *history.Event {
	r := &history.Event{What: eventKinds[e.Kind], Observer: observer, Subject: e.Node.Incarnation, UUID: e.Node.UUID, Reason: string(e.Reason)}
	switch e.Kind {
	case verdict.EventSelf, verdict.EventReset:
		r.Observer = r.Subject
	case verdict.EventHost:
		r.Subject, r.UUID, r.Reason = addr.Incarnation{}, addr.UUID{}, e.Detail
	}
	return r
}
