package verdict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// perform does one act.
func (r *hostileRun) perform(a act) {
	if !a.do.hostile() {
		r.fault(a)
		return
	}
	for i, h := range r.hostile {
		if a.who != -1 && a.who != i {
			continue
		}
		if h.proc == nil { // its own messages ended it: a new process, with the old disk
			r.w.boot(h)
			continue
		}
		if !h.proc.paused {
			r.speak(h, a, rand.New(rand.NewPCG(a.salt, uint64(i))))
		}
	}
}

// victim returns the honest member that an act is about; of all, one.
func (r *hostileRun) victim(a act) *machine {
	i := a.whom
	if i < 0 {
		i = int(a.salt % 1024)
	}
	return r.honest[i%len(r.honest)]
}

// fault does one fault, and notes which incarnation it ends and which may be judged.
func (r *hostileRun) fault(a act) {
	w, m := r.w, r.victim(a)
	switch a.do {
	case hostRestarts:
		if r.host.proc == nil {
			return
		}
		r.trouble(r.host, a.long)
		r.noteKnown()
		w.crash(r.host)
		w.after(a.long, func() { w.boot(r.host); r.hostBooted = w.now })
	case hostStalls:
		if r.host.proc == nil {
			return
		}
		if a.long >= w.tm.Silence+w.tm.Check {
			r.trouble(r.host, a.long)
		}
		r.noteKnown()
		r.stallEnds = w.now.Add(a.long)
		w.pause(r.host, a.long)
	case crashes:
		r.died(m)
		w.crash(m)
		if a.long > 0 {
			w.after(a.long, func() { w.boot(m) })
		}
	case isIsolated:
		r.died(m)
		r.trouble(m, a.long)
		w.isolate(m)
		r.isolated[m] = true
		w.after(a.long, func() { r.rejoin(m) })
	case pauses:
		w.pause(m, a.long)
	case loseEachOther:
		o := r.honest[(a.whom+1)%len(r.honest)]
		r.trouble(m, a.long)
		r.trouble(o, a.long)
		w.cut(m, o)
		w.after(a.long, func() { r.uncut(m, o) })
	case joinsAnew:
		n := w.addMachine(false)
		r.honest = append(r.honest, n)
		r.steady[n], r.alone[n], r.waits[n] = w.now, w.now, w.now
		w.boot(n)
	}
}

// rejoin ends the isolation of m: its incarnation is not dead any more,
// if the host has not decided so by now.
func (r *hostileRun) rejoin(m *machine) {
	r.isolated[m] = false
	for _, o := range r.w.machines {
		r.uncut(m, o)
	}
	r.revived(m)
}

// uncut ends a cut between two machines, of which neither is isolated.
func (r *hostileRun) uncut(a, b *machine) {
	if r.isolated[a] || r.isolated[b] {
		return
	}
	delete(r.w.cuts, [2]int{a.index, b.index})
	delete(r.w.cuts, [2]int{b.index, a.index})
}

// send sends m from the hostile machine h, as its shell may: on the newest of
// its sessions, signed with its own key, with leases of its own.
func (r *hostileRun) send(h *machine, m Message) {
	if h.proc == nil || h.proc.paused {
		return
	}
	ids := sortedKeys(h.proc.conns)
	if len(ids) == 0 || !r.proven(h, m) {
		return
	}
	r.w.transmit(h.proc.conns[ids[len(ids)-1]], 0, m)
}

// proven reports whether the host's shell passes m on: it has verified the
// lease that m shows, and that the name is not that of another identity.
func (r *hostileRun) proven(h *machine, m Message) bool {
	own := func(l addr.Incarnation) bool {
		o := r.w.check.owner[l]
		return o != nil && o.at == h
	}
	free := func(name string) bool {
		return !slices.ContainsFunc(r.w.machines, func(o *machine) bool { return o != h && o.name() == name })
	}
	switch m := m.(type) {
	case Join:
		return m.UUID == h.uuid && free(m.Name()) && (m.Previous == (addr.Incarnation{}) && m.Term == 0 || own(m.Previous))
	case Resume:
		return m.UUID == h.uuid && free(m.Name()) && own(m.Incarnation)
	}
	return true
}

// about returns the incarnations that an act is about.
func (r *hostileRun) about(a act) []addr.Incarnation {
	if a.whom < 0 {
		return r.incarnations
	}
	m := r.victim(a)
	var all []addr.Incarnation
	for _, l := range r.incarnations {
		if o := r.w.check.owner[l]; o != nil && o.at == m {
			all = append(all, l)
		}
	}
	return all
}

// pick returns one of all, the newest of them more often.
func pick[T any](rng *rand.Rand, all []T) (one T) {
	switch {
	case len(all) == 0:
		return one
	case rng.IntN(2) == 0:
		return all[len(all)-1]
	}
	return all[rng.IntN(len(all))]
}

// speak performs one act of h.
func (r *hostileRun) speak(h *machine, a act, rng *rand.Rand) {
	w := r.w
	switch a.do {
	case reportsOne, reportsAll, endsOne, endsAll:
		r.accuse(h, a, rng)
	case answersChecks:
		r.repeat(h, a.long, 60*time.Millisecond, func() { r.answer(h, rng) })
	case acksAll:
		for _, l := range r.incarnations {
			r.send(h, Ack{l})
		}
	case leavesOthers:
		for _, l := range r.about(a) {
			r.send(h, Leave{l})
		}
	case pingsWildly:
		for range 5 {
			r.send(h, Ping{Incarnation: pick(rng, r.incarnations), Nonce: rng.Uint64(), Version: rng.Uint64()})
		}
	case syncs:
		for range 20 {
			r.send(h, Sync{})
		}
	case joins, resumes, saysHostOver, secondSession, replays:
		r.claim(h, a, rng)
	case spreadsFalseGossip, keepsFalseGossip:
		r.falseGossip(a, rng)
	case answersNone:
		w.muted[h.index] = true
		w.after(a.long, func() { delete(w.muted, h.index) })
	case keepsBack:
		r.keepBack(h, a.long)
	case reportsLoss:
		w.sendLossReport(h.proc, SendLossReport{Host: r.host.uuid, Epoch: r.hostEpoch()})
	case losesSome:
		r.loseSome(h, a, rng)
	case baits:
		r.loseSome(h, a, rng)
		r.keepBack(h, a.long+w.tm.Grace)
	case startsAnew:
		w.crash(h)
		w.boot(h)
	case reconnects:
		for _, id := range sortedKeys(h.proc.conns) {
			w.shut(h.proc.conns[id], 0, DownCause(1+rng.IntN(4)))
			h.proc.stepMember(Down{Session: id, Cause: DownClosed})
			break
		}
	}
}

// keepBack makes h send no Ack, CheckResult or Report for long.
func (r *hostileRun) keepBack(h *machine, long time.Duration) {
	r.keeping[h] = later(r.keeping[h], r.w.now.Add(long))
}

// loseSome cuts h off from one honest member, or from about half of them.
func (r *hostileRun) loseSome(h *machine, a act, rng *rand.Rand) {
	for _, m := range r.honest {
		if m == r.victim(a) || a.whom < 0 && rng.IntN(2) == 0 {
			r.w.cut(h, m)
			r.w.after(a.long, func() { r.uncut(h, m) })
		}
	}
}

// repeat runs f every so often for long.
func (r *hostileRun) repeat(h *machine, long, every time.Duration, f func()) {
	end, p := r.w.now.Add(long), h.proc
	var again func()
	again = func() {
		if p.dead || r.over || r.w.now.After(end) {
			return
		}
		if !p.paused {
			f()
		}
		r.w.after(every, again)
	}
	again()
}

func (r *hostileRun) hostEpoch() uint64 {
	if r.host.proc == nil {
		return 0
	}
	return r.host.proc.epoch
}

// accuse reports incarnations to the host.
func (r *hostileRun) accuse(h *machine, a act, rng *rand.Rand) {
	incarnations, evidence := r.about(a), []Evidence{EndAnnounced}
	switch a.do {
	case reportsOne:
		evidence = []Evidence{LinkSilent, LinkReset, LinkFenced, LinkRefused, DeadInGossip, LinkAlive, Evidence(rng.IntN(256))}
		rng.Shuffle(len(evidence), func(i, j int) { evidence[i], evidence[j] = evidence[j], evidence[i] })
		evidence = evidence[:1+rng.IntN(len(evidence))]
	case reportsAll:
		incarnations, evidence = r.incarnations, []Evidence{Evidence(1 + rng.IntN(int(EndAnnounced)))}
	case endsAll:
		incarnations = append([]addr.Incarnation{{Node: addr.Host, Generation: r.hostGeneration()}}, r.incarnations...)
	}
	for _, l := range incarnations {
		for _, e := range evidence {
			r.send(h, Report{About: l, Evidence: e})
		}
	}
}

// hostGeneration returns the generation of node 0, as every member knows it.
func (r *hostileRun) hostGeneration() addr.Generation {
	if r.host.proc == nil {
		return addr.Generation(r.host.term)
	}
	return addr.Generation(r.host.proc.host.Term())
}

// answer sends results of checks: of those that h was asked, of the newest of
// all, which it may have guessed, and of those to come.
func (r *hostileRun) answer(h *machine, rng *rand.Rand) {
	reached := rng.IntN(4) > 0
	for _, c := range r.checks {
		r.send(h, CheckResult{Nonce: c.Nonce, Target: c.Incarnation, Reached: reached})
		r.send(h, CheckResult{Nonce: c.Nonce + 1 + rng.Uint64N(3), Target: pick(rng, r.incarnations), Reached: reached})
	}
}

// claim sends a request that only a joining member would.
func (r *hostileRun) claim(h *machine, a act, rng *rand.Rand) {
	id, own := r.identity(h, r.victim(a), rng), pick(rng, r.own[h])
	term := rng.Uint64N(h.known + 1) // that of a lease is the highest that it can prove
	over := addr.Generation(rng.IntN(3))
	if a.do == saysHostOver {
		own, over = h.proc.member.self, r.hostGeneration()
		if rng.IntN(4) == 0 {
			over = ^addr.Generation(0)
		}
	}
	if rng.IntN(3) == 0 || a.do == secondSession {
		r.connect(h)
	}
	switch {
	case a.do == replays:
		for range 6 {
			if m := pick(rng, r.sent[h]); m != nil {
				r.send(h, m)
			}
		}
	case a.do == joins, a.do == secondSession && rng.IntN(2) == 0:
		m := Join{Identity: id, Previous: own, Term: term}
		if rng.IntN(2) == 0 {
			m.Previous, m.Term = addr.Incarnation{}, 0
		}
		r.send(h, m)
	default:
		if a.do == saysHostOver {
			id.Epoch = h.proc.epoch
		}
		r.send(h, Resume{Identity: id, Incarnation: own, Term: term, HostOver: over})
	}
}

// identity returns the identity that h claims: its own UUID, for it has no other
// certificate, and names and addresses of others.
func (r *hostileRun) identity(h, victim *machine, rng *rand.Rand) Identity {
	id := Identity{UUID: h.uuid, Epoch: h.proc.epoch, Claims: claims(h.name(), fmt.Sprintf("m%d:1", h.index))}
	other := victim
	if rng.IntN(3) == 0 {
		other = r.w.machines[rng.IntN(len(r.w.machines))]
	}
	switch rng.IntN(8) {
	case 0:
		id.Claims = claims(other.name(), id.Addresses()...)
	case 1:
		id.Claims = claims(h.name(), fmt.Sprintf("m%d:1", other.index))
	case 2:
		id.Claims = Claims{}
	case 4:
		id.Epoch += uint64(rng.IntN(5)) - 2
	}
	return id
}

// connect opens a session of h beside those that it has.
func (r *hostileRun) connect(h *machine) {
	p, b := h.proc, r.host.proc
	if b == nil || b.paused || len(p.conns) >= 8 || !r.w.reaches(h, r.host) {
		return
	}
	c := &conn{ends: [2]*proc{p, b}, open: true}
	for i, e := range c.ends {
		e.sessions++
		c.ids[i] = e.sessions
		e.conns[e.sessions] = c
	}
}

// falseGossip makes honest members receive false gossip. The truth follows after a
// while; of gossip that is kept up, when it ends.
func (r *hostileRun) falseGossip(a act, rng *rand.Rand) {
	incarnations := r.about(a)
	if rng.IntN(2) == 0 {
		incarnations = append([]addr.Incarnation{{Node: addr.Host, Generation: r.hostGeneration()}}, incarnations...)
	}
	what := []GossipState{GossipDead, GossipDead, GossipSuspect, GossipAlive}[rng.IntN(4)]
	again := time.Duration(0)
	if a.do == keepsFalseGossip {
		what, again = []GossipState{GossipDead, GossipAlive}[a.salt%2], 250*time.Millisecond
	}
	for _, m := range r.w.machines {
		p := m.proc
		if p == nil || p.paused || r.bad[m] || (a.do == spreadsFalseGossip && rng.IntN(2) == 0) {
			continue
		}
		for _, l := range incarnations {
			for at := time.Duration(0); at == 0 || again > 0 && at < a.long; at += again {
				r.w.to(p, at+r.w.delay(), func() { p.stepMember(Gossip{l, what}) })
				if again == 0 {
					break
				}
			}
			r.w.to(p, a.long+300*time.Millisecond, func() { r.truth(p, l) })
		}
	}
}

// truth makes p receive true gossip about an incarnation.
func (r *hostileRun) truth(p *proc, l addr.Incarnation) {
	if s := r.w.pairs[pair{p, l}]; s != nil {
		p.stepMember(Gossip{l, s.gossip})
	}
}
