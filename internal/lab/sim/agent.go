package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// start is the moment that virtual time begins at, for the machines that take
// a time.Time.
var start = time.Unix(1_000_000_000, 0)

// An agent is the shell of membership in one fabricd: it owns the deciding machines,
// performs their effects and feeds them events. It follows membership.Agent.
type agent struct {
	w  *world
	p  *proc
	at *machine

	self   controlEnd
	host   *verdict.Host // nil on other nodes
	member *verdict.Member
	todo   []step

	sessions map[verdict.SessionID]*tcpEnd
	peers    map[verdict.SessionID]controlEnd
	lastID   verdict.SessionID

	lines        *verdict.Lines[line]
	gossipStates map[verdict.Start]verdict.GossipState // the last state that gossip reported about each start
	banned       map[addr.UUID]bool                    // at the host: nodes that it does not admit

	pace     verdict.Pace
	timer    int // counts the settings of the timer: an old one does nothing
	departed bool
	hostText string
	over     map[addr.NodeID]addr.Generation

	writes   []verdict.Persist // of the host, not on disk yet
	events   []verdict.Event
	handling bool   // an event's handler runs
	sent     uint64 // messages on control sessions, keepalives included
	reported ledger
}

// A step is one input for one of the two machines.
type step struct {
	host   verdict.HostInput
	member verdict.MemberInput
}

// A controlEnd is the identity that one end of a control session or lifeline reports.
type controlEnd struct {
	uuid        addr.UUID
	epoch       uint64
	incarnation addr.Incarnation
	lease       []byte // of a lifeline
}

func newAgent(p *proc) *agent {
	w, d := p.w, &p.at.disk
	a := &agent{w: w, p: p, at: p.at,
		sessions: make(map[verdict.SessionID]*tcpEnd), peers: make(map[verdict.SessionID]controlEnd),
		gossipStates: make(map[verdict.Start]verdict.GossipState), banned: make(map[addr.UUID]bool), over: make(map[addr.NodeID]addr.Generation)}
	a.self = controlEnd{uuid: d.uuid, epoch: d.epochs}
	self := verdict.Identity{UUID: d.uuid, Epoch: d.epochs,
		Claims: must(verdict.NewClaims(fmt.Sprintf("node%d", p.at.index), []string{p.at.address()}, []string{"quic"}))}
	as := verdict.MemberConfig{Self: self, Previous: d.incarnation, Lease: d.lease, Term: d.known, Timing: w.timing}
	if p.at.host {
		d.term++
		a.host = must(verdict.NewHost(verdict.HostConfig{Self: self, Term: d.term, Leases: d.records(),
			Cursor: d.cursor, Timing: w.timing, Partial: w.partial}, w.time()))
		as.Previous, as.Lease = addr.Incarnation{}, nil
	}
	a.member = must(verdict.NewMember(as, w.time()))
	a.pace = verdict.NewPace(a.host, a.member, w.timing, w.time(), w.time())
	a.lines = verdict.NewLines(d.uuid, &a.pace, a, func(l *line) *verdict.Line { return &l.Line })
	p.accept = a.accept
	return a
}

func (w *world) time() time.Time { return start.Add(w.now) }

func (a *agent) run() { a.setTimer(0) }

func (a *agent) setTimer(d time.Duration) {
	a.timer++
	mine := a.timer
	a.p.after(d, func() {
		if a.timer == mine {
			a.tick()
			a.arm()
		}
	})
}

// arm sets the timer for the next tick, if that has changed.
func (a *agent) arm() {
	if a.p.dead {
		return
	}
	now := a.w.time()
	if at, changed := a.pace.Next(now); changed {
		a.setTimer(at.Sub(now))
	}
}

func (a *agent) tick() {
	if a.pace.Tick(a.w.time()) {
		a.resetLineTimers()
	}
	if a.host != nil {
		a.feedHost(verdict.Tick{})
	}
	a.feedMember(verdict.Tick{})
	a.maintainLines()
	a.keepLinesAlive()
}

func (a *agent) feedHost(in verdict.HostInput)     { a.feed(step{host: in}) }
func (a *agent) feedMember(in verdict.MemberInput) { a.feed(step{member: in}) }

// feed steps a machine, performs its effects, and continues with the steps that these
// cause at once.
func (a *agent) feed(s step) {
	a.todo = append(a.todo, s)
	if len(a.todo) > 1 {
		return
	}
	for len(a.todo) > 0 && !a.p.dead {
		s := a.todo[0]
		var actions []verdict.Action
		if s.host != nil {
			actions = a.pace.StepHost(a.w.time(), s.host)
		} else {
			actions = a.pace.StepMember(a.w.time(), s.member)
		}
		for _, x := range actions {
			if a.p.dead {
				break
			}
			a.perform(x, s.host != nil)
		}
		a.todo = a.todo[1:]
	}
	a.todo = nil
	a.arm()
}

// perform performs one effect of a machine.
func (a *agent) perform(x verdict.Action, fromHost bool) {
	switch x := x.(type) {
	case verdict.Send:
		a.send(x, fromHost)
	case verdict.CloseSession:
		if e := a.sessions[x.Session]; e != nil {
			e.close()
		}
	case verdict.Persist:
		a.persist(x)
	case verdict.Redial:
		a.redial(x)
	case verdict.StepDown:
		a.p.exit("steps down: " + x.Text)
	case verdict.Emit:
		a.emit(x.Event)
	case verdict.DialHost:
		a.dialHost()
	case verdict.Probe:
		a.probe(x)
	case verdict.Look:
		a.lookAt(x)
	case verdict.Remember:
		a.remember(x)
	case verdict.SendLossReport:
		a.sendLossReport(x)
	case verdict.Revalidate:
		a.resetLineTimers()
		a.p.node.revalidate()
	case verdict.Halt:
		a.p.exit(fmt.Sprintf("halts: %s: %s", x.Code, x.Text))
	case verdict.Departed:
		a.depart()
	case verdict.Note:
	}
}

// remember writes our own incarnation, synced, before the later effects of the step. A write
// that fails is harmless, except that the next start knows less.
func (a *agent) remember(x verdict.Remember) {
	if x.Incarnation != (addr.Incarnation{}) && !a.p.step(failpoint.LeaseGranted) || a.at.disk.broken() {
		return
	}
	d := &a.at.disk
	d.known = max(d.known, x.Term)
	if x.Incarnation != (addr.Incarnation{}) {
		d.incarnation, d.lease = x.Incarnation, x.Lease
		a.p.step(failpoint.LeaseRemembered)
	}
}

// persist queues a write of the lease table.
func (a *agent) persist(x verdict.Persist) {
	before := failpoint.GrantDecided
	if isRemoval(x) {
		before = failpoint.RemovalDecided
	}
	if !a.p.step(before) {
		return
	}
	a.writes = append(a.writes, x)
	if len(a.writes) == 1 {
		a.p.hand(a.commit)
	}
}

func isRemoval(x verdict.Persist) bool {
	return slices.ContainsFunc(x.Leases, func(l verdict.Lease) bool { return l.State == verdict.LeaseQuarantine })
}

// commit writes everything that is queued at once, in a few milliseconds. A
// crash before the sync loses it; one after may lose the confirmation.
func (a *agent) commit() {
	d, p, n := &a.at.disk, a.p, len(a.writes)
	if !p.step(failpoint.TableBegun) {
		return
	}
	p.after(between(p.rng, 500*time.Microsecond, 4*time.Millisecond)+d.slow, func() {
		batch := a.writes[:n:n]
		if !p.step(failpoint.TableWritten) {
			return
		}
		var answers []verdict.HostInput
		if d.broken() { // one by one, so that the host learns which write failed
			for _, x := range batch {
				a.w.watch.refused(x)
				answers = append(answers, verdict.PersistFailed{Seq: x.Seq, Text: "no space left on device"})
			}
		} else if !a.stored(batch) {
			return
		} else {
			answers = append(answers, verdict.Persisted{Seq: batch[n-1].Seq})
		}
		if a.writes = a.writes[n:]; len(a.writes) > 0 {
			p.hand(a.commit)
		}
		p.after(between(p.rng, 0, 500*time.Microsecond), func() {
			for _, in := range answers {
				a.feedHost(in)
			}
		})
	})
}

// stored puts writes on the disk. It reports false if the process crashed there.
func (a *agent) stored(batch []verdict.Persist) bool {
	for _, x := range batch {
		a.w.watch.stored(a, x)
		a.at.disk.store(x)
	}
	for _, x := range batch {
		after := failpoint.GrantPersisted
		if isRemoval(x) {
			after = failpoint.RemovalPersisted
		}
		if !a.p.step(after) {
			return false
		}
	}
	return true
}

// emit applies an event to this process, and queues it for the handlers.
func (a *agent) emit(e verdict.Event) {
	switch e.Kind {
	case verdict.EventRemoved:
		a.over[e.Node.Incarnation.Node] = max(a.over[e.Node.Incarnation.Node], e.Node.Incarnation.Generation)
		if !a.p.step(failpoint.RemovalArrived) {
			return
		}
		if l := a.lines.Find(verdict.Start{UUID: e.Node.UUID, Epoch: e.Node.Epoch}); l != nil && l.up != nil {
			l.up.close()
		}
	case verdict.EventReset:
		clear(a.over)
		a.closeLines()
	case verdict.EventHost:
		a.hostText = e.Detail
	case verdict.EventAdded:
		a.feedGossip(e.Node)
	}
	a.w.watch.event(a, e)
	a.events = append(a.events, e)
	if !a.handling {
		a.handling = true
		a.p.after(handlerTime(a.p), a.handle)
	}
}

// handlerTime is how long an event's handler takes to begin.
func handlerTime(p *proc) time.Duration { return between(p.rng, 0, 200*time.Microsecond) }

// handle runs the handler of the oldest event: it returns from a removal when
// the engine has ended everything towards the incarnation.
func (a *agent) handle() {
	e := a.events[0]
	a.events = a.events[1:]
	if !a.p.node.membership(e) {
		return // it crashed in the middle
	}
	if e.Kind == verdict.EventRemoved {
		if !a.p.step(failpoint.RemovalHandled) {
			return
		}
		a.p.hand(func() { a.feedMember(verdict.Handled{Incarnation: e.Node.Incarnation}) })
	}
	if len(a.events) == 0 {
		a.handling = false
		return
	}
	a.p.after(handlerTime(a.p), a.handle)
}

// depart closes the lifelines, which show peers that this node is here, and then ends the process.
func (a *agent) depart() {
	a.departed = true
	a.closeLines()
	a.p.after(20*time.Millisecond, func() { a.p.exit("left") })
}
