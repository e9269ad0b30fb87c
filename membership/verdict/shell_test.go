package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func (p *proc) stepHost(in HostInput) {
	if p.host == nil || p.dead {
		return
	}
	p.perform(p.hostStep(in), 1)
	p.arm()
}

// hostStep feeds the Host, and reports the step to the observer of this world.
func (p *proc) hostStep(in HostInput) []Action {
	actions := p.host.Step(p.w.now, in)
	if p.w.tap != nil {
		p.w.tap(p, in, actions)
	}
	return actions
}

func (p *proc) stepMember(in MemberInput) {
	if p.dead {
		return
	}
	p.perform(p.member.Step(p.w.now, in), 0)
	p.arm()
}

// perform is the shell: it does the actions of one step in order, unless the
// process is to crash between two of them.
func (p *proc) perform(actions []Action, side int) {
	for _, a := range actions {
		if p.crashIn == 0 {
			p.w.crash(p.at)
			return
		}
		if p.crashIn > 0 {
			p.crashIn--
		}
		p.act(a, side)
		if p.dead {
			return
		}
	}
}

func (p *proc) act(a Action, side int) {
	w := p.w
	switch a := a.(type) {
	case Send:
		p.sendOn(a, side)
		return
	case Persist:
		p.write(a)
	case Redial:
		w.probe(p, a.UUID, a.Epoch, a.Addresses(), func(o RedialOutcome) { p.stepHost(Redialed{a.Incarnation, o}) })
	case Probe:
		w.probe(p, a.UUID, a.Epoch, a.Addresses(), func(o RedialOutcome) { p.stepMember(Probed{Nonce: a.Nonce, Reached: o == RedialAlive}) })
	case Look:
		w.probe(p, a.UUID, a.Epoch, a.Addresses(), func(o RedialOutcome) {
			if o == RedialAlive {
				p.stepMember(Link{Incarnation: a.Incarnation, Evidence: LinkAlive})
			}
		})
	case DialHost:
		w.dial(p)
		return
	case SendLossReport:
		w.sendLossReport(p, a)
	case CloseSession:
		if c := p.conns[a.Session]; c != nil {
			w.shut(c, side, DownClosed)
		}
	case Remember:
		p.at.incarnation, p.at.known = a.Incarnation, a.Term
	case Emit:
		p.events = append(p.events, seen{w.now, a.Event})
		w.check.event(p, a.Event)
		if a.Event.Kind == EventRemoved {
			w.to(p, time.Duration(w.rng.IntN(20))*time.Millisecond, func() { p.stepMember(Handled{a.Event.Node.Incarnation}) })
		}
	case StepDown:
		p.ended = a.Text
		w.record(p, "does", a)
		w.kill(p.at, DownClosed)
		return
	case Halt:
		p.ended = fmt.Sprint("halt ", a.Code)
		w.record(p, "does", a)
		w.kill(p.at, DownClosed)
		return
	case Departed:
		p.ended = "departed"
		w.kill(p.at, DownClosed)
		return
	}
	w.record(p, "does", a)
}

func (p *proc) sendOn(a Send, side int) {
	w := p.w
	switch m := a.Message.(type) {
	case Grant:
		w.check.grant(p, a.Session, m)
		w.record(p, "sends", a)
	case Ping, Pong, Table:
	case Report:
		if m.Evidence == EndAnnounced {
			w.check.disputed[p], w.check.disputed[w.check.owner[m.About]] = true, true
		}
		w.record(p, "sends", a)
	default:
		w.record(p, "sends", a)
	}
	if a.Session == LocalSession {
		w.to(p, 0, func() { p.deliver(1-side, Received{Session: LocalSession, Message: a.Message}) })
		return
	}
	if c := p.conns[a.Session]; c != nil {
		w.transmit(c, side, a.Message)
	}
}

// write syncs records in order, a few milliseconds each. A crash before that
// loses them; one after may lose the confirmation.
func (p *proc) write(a Persist) {
	w, m := p.w, p.at
	if m.full {
		w.to(p, time.Millisecond, func() { p.stepHost(PersistFailed{a.Seq, "no space"}) })
		return
	}
	at := w.now.Add(time.Duration(1+w.rng.IntN(4)) * time.Millisecond)
	if at.Before(p.diskFree) {
		at = p.diskFree
	}
	p.diskFree = at
	w.after(at.Sub(w.now), func() {
		if p.dead || m.proc != p {
			return
		}
		m.term, m.cursor = a.Term, a.Cursor
		for _, l := range a.Leases {
			if old := m.leases[l.ID]; old.Generation > l.Generation {
				w.failf("record of node %d goes back from generation %d to %d", l.ID, old.Generation, l.Generation)
			}
			m.leases[l.ID] = l
		}
		if a.Term > uint64(p.host.self.Incarnation.Generation) {
			w.check.own(addr.Incarnation{Node: 0, Generation: addr.Generation(a.Term)}, p)
		}
		w.to(p, time.Duration(w.rng.IntN(1000))*time.Microsecond, func() { p.stepHost(Persisted{a.Seq}) })
	})
}

// A pair is an observer and an incarnation that it knows.
type pair struct {
	observer    *proc
	incarnation addr.Incarnation
}

type pairState struct {
	lost, gone time.Time // since when no link, and no gossip, reaches it; zero: it does
	link       Evidence
	gossip     GossipState
}

// scan plays the data links and the gossip of all, every 100 ms: links
// fall silent after their bound or are refused, gossip reports come two seconds late.
func (w *world) scan() {
	w.after(100*time.Millisecond, w.scan)
	for _, m := range w.machines {
		p := m.proc
		if p == nil || p.paused {
			continue
		}
		for _, incarnation := range sortedIncarnations(p.member) {
			if !p.dead {
				w.scanPair(p, incarnation)
			}
		}
	}
}

func sortedIncarnations(m *Member) []addr.Incarnation {
	var all []addr.Incarnation
	for _, p := range m.sorted() {
		all = append(all, p.node.Incarnation)
	}
	return all
}

func (w *world) scanPair(p *proc, incarnation addr.Incarnation) {
	s := w.pairs[pair{p, incarnation}]
	if s == nil {
		s = &pairState{}
		w.pairs[pair{p, incarnation}] = s
	}
	t := w.check.owner[incarnation]
	alive := t != nil && !t.dead && t.member.self == incarnation
	link := alive && w.reaches(p.at, t.at)
	gossip := alive && w.gossips(p.at, t.at)
	since := func(ok bool, at *time.Time) time.Duration {
		if ok {
			*at = time.Time{}
			return 0
		}
		if at.IsZero() {
			*at = w.now
		}
		return w.now.Sub(*at)
	}
	silent := since(link, &s.lost)
	quiet := since(gossip, &s.gone)
	want := LinkAlive
	switch {
	case link:
	case t != nil && t.dead && w.passes(p.at, t.at) && w.passes(t.at, p.at):
		want = LinkRefused
	case silent > w.tm.Silence:
		want = LinkSilent
	default:
		want = s.link
	}
	if want != s.link && want != 0 {
		s.link = want
		p.stepMember(Link{incarnation, want})
	}
	state := s.gossip
	if gossip {
		state = GossipAlive
	} else if quiet > 2*time.Second {
		state = GossipDead
	}
	if state != s.gossip && !p.dead {
		s.gossip = state
		p.stepMember(Gossip{incarnation, state})
	}
}

// gossips reports whether gossip gets from a to b, straight or by another
// node. It may use TCP where datagrams are muted.
func (w *world) gossips(a, b *machine) bool {
	hop := func(x, y *machine) bool {
		return x == y || (!w.cuts[[2]int{x.index, y.index}] && !w.cuts[[2]int{y.index, x.index}] && y.proc != nil && !y.proc.paused)
	}
	for _, k := range w.machines {
		if hop(a, k) && hop(k, b) {
			return true
		}
	}
	return false
}

// A checker watches a whole run for violations of the invariants.
type checker struct {
	w     *world
	owner map[addr.Incarnation]*proc // the process that an incarnation was granted to
	views map[*proc]*view
	// removals by observers that were notified by a table, a verdict or themselves
	removals map[addr.Incarnation]int
	disputed map[*proc]bool // announced an end, or its own was announced, without a host
}

// A view is the state that one process has reported to its handlers since its last EventSelf.
type view struct {
	self  addr.Incarnation
	local addr.Incarnation // for its machine alone
	in    map[addr.NodeID]addr.Generation
	out   map[addr.NodeID]addr.Generation
}

func newChecker(w *world) *checker {
	return &checker{w: w, owner: make(map[addr.Incarnation]*proc), views: make(map[*proc]*view), removals: make(map[addr.Incarnation]int), disputed: make(map[*proc]bool)}
}

// own notes that incarnation belongs to p, for ever.
func (c *checker) own(incarnation addr.Incarnation, p *proc) {
	if incarnation.Node == addr.Host && p.at != c.w.hosts[0] {
		return // two hosts at once: their terms, not their incarnations, distinguish them
	}
	if o := c.owner[incarnation]; o != nil && o != p {
		c.w.failf("incarnation %v is given to machine %d (epoch %d) and to %d (epoch %d)", incarnation, o.at.index, o.epoch, p.at.index, p.epoch)
	}
	c.owner[incarnation] = p
}

// grant checks a Grant as it leaves the host: it is on disk, and no other process
// ever had it.
func (c *checker) grant(h *proc, s SessionID, g Grant) {
	if s == LocalSession {
		c.own(g.Incarnation, h)
		return
	}
	l, ok := h.at.leases[g.Incarnation.Node]
	if !ok || l.Generation != g.Incarnation.Generation || l.State != LeaseActive {
		c.w.failf("%v is granted but the disk has %+v", g.Incarnation, l)
	}
	if g.Incarnation.Node == 0 || g.Incarnation.Node >= addr.FirstReserved {
		c.w.failf("a reserved ID is granted: %v", g.Incarnation)
	}
	if conn := h.conns[s]; conn != nil {
		c.own(g.Incarnation, conn.ends[0])
	}
}

// event checks one event against those before it.
func (c *checker) event(p *proc, e Event) {
	v := c.views[p]
	l := e.Node.Incarnation
	if v == nil {
		v = &view{}
		c.views[p] = v
	}
	bad := func(why string) { c.w.failf("machine %d in incarnation %v: %s: %+v", p.at.index, v.self, why, e) }
	switch e.Kind {
	case EventSelf:
		if v.self != (addr.Incarnation{}) {
			bad("a second incarnation without a reset")
		}
		if l.Node != addr.Host && c.owner[l] != p {
			bad("another node's incarnation")
		}
		*v = view{self: l, in: make(map[addr.NodeID]addr.Generation), out: make(map[addr.NodeID]addr.Generation)}
	case EventLocal:
		if v.self != (addr.Incarnation{}) || v.local != (addr.Incarnation{}) || l.Generation == 0 {
			bad("an incarnation for its machine alone while it has one")
		}
		v.local = l
	case EventReset:
		if v.self != l && v.local != l || l.Generation == 0 {
			bad("reset of an incarnation that it does not have")
		}
		v.self, v.local = addr.Incarnation{}, addr.Incarnation{}
	case EventAdded:
		switch {
		case v.self == (addr.Incarnation{}):
			bad("added before it has an incarnation itself")
		case v.in[l.Node] != 0:
			bad("added while another incarnation of this ID is there")
		case l.Generation <= v.out[l.Node]:
			bad("added after its end")
		case l == v.self:
			bad("added itself")
		}
		if v.in != nil {
			v.in[l.Node] = l.Generation
		}
	case EventRemoved:
		if v.in[l.Node] != l.Generation {
			bad("removed though not there")
		}
		delete(v.in, l.Node)
		v.out[l.Node] = l.Generation
		c.removals[l]++
	case EventUpdated:
		if v.in[l.Node] != l.Generation {
			bad("updated though not there")
		}
	}
}

// whole reports whether all running processes form one cluster: each has a
// incarnation of its own, and knows exactly the others.
func (w *world) whole() bool {
	incarnations := make(map[addr.NodeID]addr.Generation)
	count := 0
	for _, m := range w.machines {
		if m.proc == nil {
			continue
		}
		l := m.proc.member.self
		if l.Generation == 0 || incarnations[l.Node] != 0 || m.proc.member.stage != serving || m.proc.member.Alone() {
			return false
		}
		incarnations[l.Node] = l.Generation
		count++
	}
	for _, m := range w.machines {
		if m.proc == nil {
			continue
		}
		v := w.check.views[m.proc]
		if v == nil || v.self != m.proc.member.self || len(v.in) != count-1 {
			return false
		}
		for id, g := range v.in {
			if incarnations[id] != g {
				return false
			}
		}
	}
	return true
}

// startAll boots every machine and waits until they are a cluster.
func (w *world) startAll() {
	w.t.Helper()
	for _, m := range w.machines {
		w.boot(m)
	}
	w.until(5*time.Second, "first start", w.whole)
	for _, m := range w.machines {
		m.touched = false
	}
}

// cut stops packets between two machines, both ways.
func (w *world) cut(a, b *machine) {
	w.cuts[[2]int{a.index, b.index}], w.cuts[[2]int{b.index, a.index}] = true, true
	a.touched, b.touched = true, true
}

// isolate cuts m off from all others.
func (w *world) isolate(m *machine) {
	touched := make([]bool, len(w.machines))
	for i, o := range w.machines {
		touched[i] = o.touched
	}
	for i, o := range w.machines {
		if o != m {
			w.cut(m, o)
			o.touched = touched[i]
		}
	}
}

// sendLossReport sends a word to the process that it is for, if that runs.
func (w *world) sendLossReport(p *proc, a SendLossReport) {
	incarnation := p.member.self
	for _, m := range w.machines {
		to := m.proc
		if to != nil && to.host != nil && m.uuid == a.Host && to.epoch == a.Epoch && w.passes(p.at, m) && !w.unacked && w.rng.Float64() >= w.loss {
			w.to(to, w.delay(), func() { to.stepHost(LossReport{incarnation}) })
		}
	}
}

// cutInbound lets no packet reach m, and every packet that it sends arrive.
func (w *world) cutInbound(m *machine) {
	w.inboundCut = w.now
	for _, o := range w.machines {
		if o != m {
			w.cuts[[2]int{o.index, m.index}] = true
		}
	}
	m.touched = true
}

func (w *world) heal() { clear(w.cuts); clear(w.muted) }

// count returns how many events of a kind p has reported about incarnation, since a time.
func (p *proc) count(kind EventKind, incarnation addr.Incarnation, since time.Time) int {
	n := 0
	for _, e := range p.events {
		if e.Kind == kind && e.Node.Incarnation == incarnation && !e.at.Before(since) {
			n++
		}
	}
	return n
}
