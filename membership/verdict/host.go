package verdict

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Host is the authority of a cluster: it leases the node IDs and decides which
// incarnations are over. The package doc describes its use. Owned by one goroutine.
type Host struct {
	cfg  HostConfig
	t    Timing
	self Node // node 0; its generation is the term
	term uint64
	next uint64 // the highest term that was ever to be written, ≥ term: no later write goes below it

	table   *leaseTable
	nodes   []*hostNode // all incarnations, ascending by ID; the first is node 0
	ended   map[addr.NodeID]*ending
	version uint64 // of the table as members see it
	changes changes
	records records

	sessions map[SessionID]*hostNode // the node at the other end
	nonce    uint64                  // of the newest check

	outage   outage    // the last time in which members may have been without this host
	disputes []dispute // of it; ascending by the fields about and by
	settle   time.Time // when to decide them; zero: there are none

	clock    stallClock
	started  time.Time
	grace    time.Time // its end
	renewing bool      // the next term is being written
	served   bool      // a node joined or resumed in this term
	lost     bool      // incarnations were granted that the table does not have: newcomers wait for the grace
	stopped  bool      // stepped down or left

	out out
}

// A phase is where a hostNode is between a Join and its end.
type phase uint8

const (
	granting  phase = iota + 1 // its lease is being written
	unclaimed                  // leased in an earlier term, not resumed yet
	live                       // granted or resumed
	removing                   // its end is decided and being written
)

// A hostNode is one incarnation that holds a lease, or node 0.
type hostNode struct {
	node  Node
	lease *Lease // nil for node 0
	phase phase
	shown bool // this incarnation was sent to members

	session  SessionID
	up       bool      // session is open
	lastSeen time.Time // last sign of life
	gone     time.Time // since when it has no session

	check   *check
	checked time.Time // when a check last ended well
	redial  time.Time // when an ended session counts as a crash; zero: no redial runs
	why     Reason    // of the removal that a failed redial, or removing, leads to

	waiting    *petition                 // a newer epoch of the same UUID, or the same process asking anew
	complaints map[addr.NodeID]time.Time // nodes that cannot reach it, since when
}

// name returns the node's name: the one that it claims, or claimed when it was
// granted its lease.
func (n *hostNode) name() string {
	if n.node.None() {
		return n.lease.Name
	}
	return n.node.Name()
}

// id returns the node's ID.
func (n *hostNode) id() addr.NodeID { return n.node.Incarnation.Node }

// A petition is a Join that waits for the end of its UUID's older incarnation.
type petition struct {
	session SessionID
	join    Join
}

// A check is under way to find out whether an incarnation can be reached.
type check struct {
	nonce    uint64
	deadline time.Time
	asked    []addr.NodeID // only their answers count
	losesAll bool          // it reports that nothing of ours arrives there: its signs of life count for nothing
}

// An ending is a removed incarnation whose ID is in quarantine.
type ending struct {
	incarnation addr.Incarnation
	reason      Reason
	since       time.Time
	sent        time.Time                       // last delivery to those in pending
	pending     map[addr.NodeID]addr.Generation // incarnations that have not acknowledged yet
}

// NewHost returns the host of a cluster. Leases that were active wait, for the
// grace period, to be resumed. It fails if the configuration or a lease breaks
// a rule of its type.
func NewHost(cfg HostConfig, now time.Time) (*Host, error) {
	if err := cfg.Self.check(); err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	if cfg.Term == 0 || cfg.Term >= uint64(maxGeneration) {
		return nil, fmt.Errorf("host: term %d is out of range", cfg.Term)
	}
	table, err := newLeaseTable(cfg.Leases, cfg.Cursor, cfg.Floor)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	if table.lookup(cfg.Self.UUID) != nil {
		return nil, errors.New("host: its own UUID holds a lease as a node")
	}
	h := &Host{
		cfg:      cfg,
		t:        cfg.Timing.withDefaults(),
		term:     cfg.Term,
		next:     cfg.Term,
		self:     cfg.Self.node(addr.Incarnation{Node: addr.Host, Generation: addr.Generation(cfg.Term)}),
		table:    table,
		ended:    make(map[addr.NodeID]*ending),
		sessions: make(map[SessionID]*hostNode),
		records:  records{failed: make(map[addr.NodeID]bool)},
		started:  now,
		version:  1,
	}
	h.self.Since = now
	h.lost = cfg.Floor > 0 && !slices.ContainsFunc(cfg.Leases, func(l Lease) bool { return l.Generation > cfg.Floor })
	table.raise(addr.Generation(cfg.Term - 1))
	h.grace = now.Add(h.t.Grace)
	h.clock.tick(now)
	h.nodes = []*hostNode{{node: h.self, phase: live, shown: true}}
	for _, l := range table.sorted() {
		h.reload(now, l)
	}
	h.beginOutage(h.grace.Add(h.t.Silence), false)
	return h, nil
}

// reload takes a lease over from an earlier term. Since host time is not
// comparable across a restart, a quarantine starts anew.
func (h *Host) reload(now time.Time, l *Lease) {
	switch l.State {
	case LeaseActive:
		n := &hostNode{lease: l, phase: unclaimed, shown: true, lastSeen: now, gone: now}
		n.node = Node{Incarnation: l.Incarnation(), Identity: Identity{UUID: l.UUID, Epoch: l.Epoch}, State: Suspect, Since: l.Since}
		h.nodes = append(h.nodes, n)
	case LeaseQuarantine:
		h.ended[l.ID] = &ending{incarnation: l.Incarnation(), reason: l.Reason, since: now}
	}
}

// Step feeds one input to the host at time now and returns the actions for the
// shell, in order. The caller owns the returned slice.
func (h *Host) Step(now time.Time, in HostInput) []Action {
	if by := h.clock.late(now, h.t); by > 0 {
		h.stoodStill(now, by)
	}
	switch in := in.(type) {
	case Tick:
		h.tick(now)
	case Received:
		h.receive(now, in.Session, in.Message)
	case Down:
		h.down(now, in)
	case Redialed:
		h.redialed(now, in)
	case Persisted:
		h.persisted(now, in.Seq)
	case PersistFailed:
		h.persistFailed(now, in)
	case HostSeen:
		h.hostSeen(in)
	case Expel:
		h.expel(now, in)
	case Recertify:
		h.recertify()
	case Renewed:
		h.certificateRenewed(in)
	case Claim:
		if !h.stopped {
			h.heed(now, in)
		}
	case LossReport:
		if n := h.living(in.Incarnation); n != nil && n.id() != addr.Host && !h.stopped {
			h.takeHostReport(now, n, LinkSilent)
		}
	}
	h.sendChanges(now)
	return h.out.take()
}

// receive takes a message from a session. A session that serves no incarnation yet may
// send only Join and Resume.
func (h *Host) receive(now time.Time, s SessionID, m Message) {
	switch m := m.(type) {
	case Join:
		h.join(now, s, m)
		return
	case Resume:
		h.resume(now, s, m)
		return
	}
	n := h.sessions[s]
	if n == nil || h.stopped {
		return // an incarnation that ended, or a stranger
	}
	n.lastSeen = now
	if n.phase != live {
		return
	}
	switch m := m.(type) {
	case Ping:
		h.send(s, Pong{Term: h.term, Nonce: m.Nonce, Version: h.version})
	case Sync:
		h.sendTable(n)
	case Leave:
		h.leave(now, n, m)
	case Report:
		h.report(now, n, m)
	case CheckResult:
		h.checkResult(now, n, m)
	case Ack:
		h.ack(n, m)
	}
}

// leave ends the incarnation of n at its own request. The end of the host's own incarnation is
// sent to the others at once: node 0 has no lease record to write first.
func (h *Host) leave(now time.Time, n *hostNode, m Leave) {
	if m.Incarnation != n.node.Incarnation {
		return
	}
	if n.id() != addr.Host {
		h.remove(now, n, ReasonLeft)
		return
	}
	h.sendChangesNow(now)
	h.version++
	h.broadcast(nil, RemovedIncarnation{Term: h.term, Version: h.version, Incarnation: m.Incarnation, Reason: ReasonLeft})
	h.stepDown("the host leaves")
}

// hostSeen judges which of two hosts stays. A host that serves no node yet steps
// down for one that does: it came later. Otherwise the higher term stays, and of
// equal terms the higher UUID, then the higher epoch. One with our UUID and another
// epoch runs on a copy of our state, and is another host like any other.
func (h *Host) hostSeen(in HostSeen) {
	if h.stopped || in.UUID == h.self.UUID && in.Epoch == h.self.Epoch {
		return // it is this process
	}
	yield := in.Serving
	if h.served == in.Serving {
		yield = outranks(in, h.term, h.self)
	}
	if yield {
		h.stepDown(fmt.Sprintf("node 0 is held by host %v at %s, term %d (ours is %d)", in.UUID, in.Where, in.Term, h.term))
		return
	}
	h.note("another host %v at %s, term %d, has to stop in favour of this one, term %d", in.UUID, in.Where, in.Term, h.term)
}

// outranks reports whether the other host is to stay rather than self.
func outranks(in HostSeen, term uint64, self Node) bool {
	if in.Term != term {
		return in.Term > term
	}
	if c := bytes.Compare(in.UUID[:], self.UUID[:]); c != 0 {
		return c > 0
	}
	return in.Epoch > self.Epoch
}

func (h *Host) stepDown(text string) {
	if h.stopped {
		return
	}
	h.stopped = true
	h.out.add(StepDown{Text: text})
}

// stoodStill discards the silence of the time in which the host's own process
// did not run: every node has a fresh bound.
func (h *Host) stoodStill(now time.Time, by time.Duration) {
	if h.stopped {
		return
	}
	h.note("this process stood still for %v; no node is judged by that time", by.Round(time.Millisecond))
	for _, n := range h.nodes {
		n.lastSeen = now
		n.complaints = nil
		if !n.redial.IsZero() {
			h.startRedial(now, n, n.why)
		}
		if n.check != nil {
			h.startCheck(now, n)
		}
	}
	if h.grace.After(now.Add(-by)) {
		h.grace = h.grace.Add(by)
	}
	h.started = h.started.Add(by)
	if !h.settle.IsZero() {
		h.settle = now.Add(h.t.Silence)
	}
	if by+h.t.Tick >= h.t.Silence {
		h.beginOutage(now.Add(h.t.Grace), true)
	}
}

// expel ends an incarnation by an operator's command.
func (h *Host) expel(now time.Time, in Expel) {
	n := h.holder(in.UUID)
	if n == nil || n.phase == removing || h.stopped {
		return
	}
	if w := n.waiting; w != nil {
		n.waiting = nil
		h.refuse(w.session, RefusedBusy, "an operator has just ended the incarnation before")
	}
	if n.phase == granting {
		h.ungrant(now, n, RefusedBusy, "an operator has ended this incarnation")
		return
	}
	h.remove(now, n, in.Reason)
}

// certificateRenewed announces the new end of a node's certificate to all.
func (h *Host) certificateRenewed(in Renewed) {
	n := h.holder(in.UUID)
	if in.UUID == h.self.UUID {
		n = h.nodes[0]
		h.self.Until = in.Until
	}
	if n == nil || n.node.Until.Equal(in.Until) || h.stopped {
		return
	}
	n.node.Until = in.Until
	if n.shown && n.phase == live {
		h.announce(n)
	}
}

// tick does the work that is due by time alone.
func (h *Host) tick(now time.Time) {
	h.clock.tick(now)
	if h.stopped {
		return
	}
	for _, n := range slices.Clone(h.nodes) {
		switch {
		case n.id() == addr.Host:
		case n.phase == unclaimed:
			h.judgeUnclaimed(now, n)
		case n.phase == live:
			h.judge(now, n)
		}
	}
	if due(h.settle, now) {
		h.decide(now)
	}
	h.tickEnded(now)
	if h.records.due(now) {
		h.rewrite(now)
	}
}

// find returns the node that lives as id, or nil.
func (h *Host) find(id addr.NodeID) *hostNode {
	if i, ok := h.search(id); ok {
		return h.nodes[i]
	}
	return nil
}

func (h *Host) search(id addr.NodeID) (int, bool) {
	return slices.BinarySearchFunc(h.nodes, id, func(n *hostNode, id addr.NodeID) int { return int(n.id()) - int(id) })
}

// living returns the node of an incarnation that is live, or nil.
func (h *Host) living(l addr.Incarnation) *hostNode {
	if n := h.find(l.Node); n != nil && n.node.Incarnation == l && n.phase == live {
		return n
	}
	return nil
}

// holder returns the node that lives with UUID u, or nil.
func (h *Host) holder(u addr.UUID) *hostNode {
	l := h.table.lookup(u)
	if l == nil {
		return nil
	}
	if n := h.find(l.ID); n != nil && n.node.UUID == u {
		return n
	}
	return nil
}

// Term returns the host's term.
func (h *Host) Term() uint64 { return h.term }

// Serving reports whether a node joined or resumed in this term, the host's
// own node aside; it goes into the host's gossip.
func (h *Host) Serving() bool { return h.served }

// Living returns the node that lives as l.
func (h *Host) Living(l addr.Incarnation) (n Node, ok bool) {
	if n := h.living(l); n != nil {
		return n.node, true
	}
	return Node{}, false
}

// IncarnationOf returns the incarnation that the node with this UUID has.
func (h *Host) IncarnationOf(u addr.UUID) (l addr.Incarnation, ok bool) {
	if n := h.holder(u); n != nil {
		return n.node.Incarnation, true
	}
	return addr.Incarnation{}, false
}

// Asked reports whether a check of this nonce is under way for l.
func (h *Host) Asked(l addr.Incarnation, nonce uint64) bool {
	n := h.living(l)
	return n != nil && n.check != nil && n.check.nonce == nonce
}

// Speaks reports whether an incarnation is bound to the session.
func (h *Host) Speaks(s SessionID) bool { return h.sessions[s] != nil }

// Pending returns how many members have not acknowledged yet that they have dealt with the
// end of l; while that is being written, one at least.
func (h *Host) Pending(l addr.Incarnation) int {
	if n := h.find(l.Node); n != nil && n.node.Incarnation == l {
		return 1
	}
	e := h.ended[l.Node]
	if e == nil || e.incarnation != l {
		return 0
	}
	owing := 0
	for id := range e.pending {
		if n := h.find(id); n != nil && n.up {
			owing++ // one that is away ends all with it before it comes back
		}
	}
	return owing
}

// Sessions returns every incarnation but node 0's that is not over, with the session
// on which it speaks, [LocalSession] if it has none now.
func (h *Host) Sessions() map[addr.Incarnation]SessionID {
	all := make(map[addr.Incarnation]SessionID, len(h.nodes))
	for _, n := range h.nodes[1:] {
		switch {
		case n.phase != live && n.phase != unclaimed:
		case n.up:
			all[n.node.Incarnation] = n.session
		default:
			all[n.node.Incarnation] = LocalSession
		}
	}
	return all
}

// Leases returns a copy of every lease ever granted, in order of ID.
func (h *Host) Leases() []Lease {
	all := make([]Lease, 0, len(h.table.leases))
	for _, l := range h.table.sorted() {
		all = append(all, *l)
	}
	return all
}

func (h *Host) note(format string, args ...any) {
	h.out.add(Note{Text: fmt.Sprintf(format, args...)})
}
