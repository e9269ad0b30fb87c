package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A breach is that an honest incarnation was harmed, or that a rule which
// keeps it from harm was broken.
type breach struct {
	kind    breachKind
	machine int // the one harmed
	at      time.Duration
	text    string
}

type breachKind string

const (
	wasRemoved      breachKind = "removed"       // an honest incarnation that answers was ended
	wasReset        breachKind = "host reset"    // the host's incarnation was ended though it answers
	wasReportedOver breachKind = "reported over" // an honest member reported the end of an incarnation that answers
	wasHidden       breachKind = "hidden"        // the end of an honest incarnation is not reported in time
	wasImpersonated breachKind = "impersonated"  // an ID or UUID is another's
	wasBlocked      breachKind = "blocked"       // an honest member is not served
	rule            breachKind = "rule"          // a verdict that too few words stand behind
	broken          breachKind = "broken"        // an invariant of every run, or a panic
)

func (b breach) String() string {
	return fmt.Sprintf("%s: machine %d at %v: %s", b.kind, b.machine, b.at, b.text)
}

const (
	blockBound  = 3 * time.Second // for an honest member to be served by a host that answers
	reportSlack = 700 * time.Millisecond
	aftermath   = 6 * time.Second // after a long fault, until its effects have ended
)

// trouble notes that m is not there for so long: its removal then, or a while
// after, is no breach.
func (r *hostileRun) trouble(m *machine, long time.Duration) {
	r.troubled[m] = later(r.troubled[m], r.w.now.Add(long+aftermath))
}

func (r *hostileRun) inTrouble(m *machine) bool { return r.w.now.Before(r.troubled[m]) }

// A dead is an honest incarnation that is over; its end must be announced.
type dead struct {
	incarnation addr.Incarnation
	at          *machine
	proc        *proc
	from        time.Time
}

// died notes that the incarnation of m ends now.
func (r *hostileRun) died(m *machine) {
	if m.proc == nil || m.proc.member.self == (addr.Incarnation{}) {
		return
	}
	r.dead = append(r.dead, dead{m.proc.member.self, m, m.proc, r.w.now})
}

// revived takes back the deaths of m's process that are not decided.
func (r *hostileRun) revived(m *machine) {
	r.dead = slices.DeleteFunc(r.dead, func(d dead) bool { return d.at == m && d.proc == m.proc })
}

// noteKnown remembers the incarnations that an outage which begins now is about.
func (r *hostileRun) noteKnown() {
	clear(r.known)
	for _, l := range r.host.leases {
		if l.State == LeaseActive {
			r.known[l.Incarnation()] = true
		}
	}
	clear(r.accusers)
	r.claims = nil
}

// tap sees each step of a Host.
func (r *hostileRun) tap(p *proc, in HostInput, actions []Action) {
	if got, ok := in.(Received); ok {
		r.received(p, got)
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Persist:
			for _, l := range a.Leases {
				if l.State == LeaseQuarantine && !r.decided[l.Incarnation()] {
					r.ends(l)
				}
			}
		case Send:
			switch m := a.Message.(type) {
			case Grant:
				r.grants(p, a.Session, m)
			case Check:
				r.checks = append(r.checks, m)
				r.checks = r.checks[max(0, len(r.checks)-4):]
			}
		case StepDown:
			r.breach(broken, r.host, "the host steps down: %s", a.Text)
		}
	}
	if term := p.host.Term(); term != r.term[p] {
		if r.term[p] != 0 {
			r.renews(p, term)
		}
		r.term[p] = term
	}
}

// speaker returns the process at the other end of a session of the host.
func (r *hostileRun) speaker(p *proc, s SessionID) *proc {
	if c := p.conns[s]; c != nil {
		return c.ends[0]
	}
	return nil
}

// received notes which messages of others reach the host.
func (r *hostileRun) received(p *proc, got Received) {
	from := r.speaker(p, got.Session)
	if from == nil {
		return
	}
	switch m := got.Message.(type) {
	case Resume:
		if m.HostOver >= addr.Generation(r.term[p]) && r.known[m.Incarnation] {
			r.claims = append(r.claims, claimed{r.w.now, m.Incarnation})
		}
	case Report:
		by := from.member.self
		switch {
		case m.Evidence == EndAnnounced && r.known[by]:
			if r.accusers[m.About] == nil {
				r.accusers[m.About] = make(map[addr.Incarnation]bool)
			}
			r.accusers[m.About][by] = true
		case m.Evidence >= LinkSilent && m.Evidence <= LinkRefused && m.About.Node != addr.Host:
			r.complained[by] = true
		}
	}
}

// ends judges the end of an incarnation that the host decides.
func (r *hostileRun) ends(l Lease) {
	incarnation := l.Incarnation()
	o := r.w.check.owner[incarnation]
	if o != nil && !o.dead && !r.bad[o.at] {
		r.scan(o) // its events by now
	}
	r.decided[incarnation] = true
	if o == nil || r.bad[o.at] || o.dead || o.member.self != incarnation {
		return // never granted, hostile, or over
	}
	if r.reported[o] == reportedHostile {
		r.baited++
	}
	if r.reported[o] != reportedNone || (r.w.partial == PartialEvict && r.complained[incarnation]) {
		return // its own word
	}
	if n := len(r.accusers[incarnation]); l.Reason == ReasonPartitioned && r.w.partial == PartialReset && !many(n, len(r.known)) {
		r.breach(rule, o.at, "incarnation %v was ended by the words of %d of %d known before", incarnation, n, len(r.known))
	}
	if !r.inTrouble(o.at) {
		r.breach(wasRemoved, o.at, "incarnation %v answers and was ended by the host, %s", incarnation, l.Reason)
	}
}

// renews judges that the host takes a new incarnation.
func (r *hostileRun) renews(p *proc, term uint64) {
	claims, k := make(map[addr.Incarnation]bool), 0
	for _, c := range r.claims {
		if r.w.now.Sub(c.at) <= r.w.tm.Silence+100*time.Millisecond {
			claims[c.incarnation] = true
		}
	}
	for l := range r.known {
		if !r.decided[l] {
			k++
		}
	}
	if n := len(claims); n < min(3, k) || 2*n <= k {
		r.breach(rule, r.host, "the host's incarnation was renewed, term %d, by the words of %d of %d known before", term, n, k)
	}
	if !r.inTrouble(r.host) && k >= 3 { // of fewer members two may be all
		r.breach(wasReset, r.host, "the host answers and took a new incarnation, term %d", term)
	}
}

// grants judges which node gets an ID.
func (r *hostileRun) grants(p *proc, s SessionID, g Grant) {
	to := r.speaker(p, s)
	if to == nil {
		return // the host's own
	}
	if !slices.Contains(r.incarnations, g.Incarnation) {
		r.incarnations = append(r.incarnations, g.Incarnation)
		if r.bad[to.at] {
			r.own[to.at] = append(r.own[to.at], g.Incarnation)
		}
	}
	if g.UUID != to.at.uuid {
		r.breach(wasImpersonated, to.at, "incarnation %v is granted with UUID %v of another machine", g.Incarnation, g.UUID)
	}
	first, ok := r.holder[g.Incarnation.Node]
	if !ok {
		r.holder[g.Incarnation.Node] = to.at
	} else if first != to.at { // no quarantine ends within a run
		r.breach(wasImpersonated, first, "its ID is granted to machine %d: %v", to.at.index, g.Incarnation)
	}
	holds := make(map[addr.UUID]addr.NodeID)
	for _, l := range p.host.Leases() {
		if id, twice := holds[l.UUID]; twice && l.State == LeaseActive {
			r.breach(wasImpersonated, to.at, "UUID %v lives as node %d and %d", l.UUID, id, l.ID)
		}
		if l.State == LeaseActive {
			holds[l.UUID] = l.ID
		}
	}
}

// scan judges the events of p that are new.
func (r *hostileRun) scan(p *proc) {
	for ; r.seen[p] < len(p.events); r.seen[p]++ {
		switch e := p.events[r.seen[p]]; e.Kind {
		case EventRemoved:
			r.reportsEnd(p, e.Node.Incarnation)
		case EventReset:
			l := e.Node.Incarnation
			r.complained[l] = true // the incarnation's reports end with it
			if !r.decided[l] && l.Node != addr.Host && r.reported[p] == reportedNone && !r.inTrouble(p.at) && !r.hostHidden {
				r.breach(wasRemoved, p.at, "incarnation %v answers and was reset: %s", l, e.Detail)
			}
			delete(r.reported, p)
		}
	}
}

// reportsEnd judges that an honest member reported an end: if the host has not
// decided it, it is the member's own word.
func (r *hostileRun) reportsEnd(p *proc, l addr.Incarnation) {
	if l.Node == addr.Host {
		h := r.host.proc
		switch {
		case h == nil || h.dead || addr.Generation(h.host.Term()) != l.Generation:
			return // it is over
		case !r.inTrouble(r.host) && !r.inTrouble(p.at):
			r.breach(wasReportedOver, p.at, "reports that the host's incarnation %v is over, which answers", l)
		}
		honest, all := r.left()
		if r.inTrouble(p.at) || honest < max(min(3, all), all/2+1) {
			r.reported[p] = reportedHonest // the honest are too few for the host to know better
		}
		return
	}
	o := r.w.check.owner[l]
	if r.decided[l] || o == nil || !r.bad[o.at] && (o.dead || o.member.self != l) {
		return
	}
	if r.reported[p] = max(r.reported[p], reportedHostile); !r.bad[o.at] {
		r.reported[p] = reportedHonest
	}
	if !r.bad[o.at] && !r.inTrouble(o.at) && !r.inTrouble(p.at) {
		r.breach(wasReportedOver, p.at, "reports that incarnation %v of machine %d is over, which answers", l, o.at.index)
	}
}

// left returns how many of those known before the last outage are left, and how
// many of them are honest.
func (r *hostileRun) left() (honest, all int) {
	for l := range r.known {
		o := r.w.check.owner[l]
		if r.decided[l] || o == nil {
			continue
		}
		all++
		if !o.dead && !r.bad[o.at] && o.member.self == l && !r.inTrouble(o.at) {
			honest++
		}
	}
	return honest, all
}

// watch checks every member, every 100 ms.
func (r *hostileRun) watch() {
	if r.over {
		return
	}
	w := r.w
	w.after(100*time.Millisecond, r.watch)
	if h := r.host.proc; h == nil || h.paused {
		r.hostSince = w.now
	}
	for _, m := range r.honest {
		if p := r.last[m]; m.proc == nil && p != nil && p.ended != "" && !r.inTrouble(m) {
			r.breach(wasBlocked, m, "its process ends: %s", p.ended)
		}
		if m.proc == nil {
			r.steady[m], r.alone[m], r.waits[m] = w.now, w.now, w.now
			continue
		}
		r.last[m] = m.proc
		r.scan(m.proc)
		r.watchWaiting(m)
	}
	r.watchHost()
	r.dead = slices.DeleteFunc(r.dead, r.buried)
}

// watchWaiting finds out that a member waits too long for a host that answers.
func (r *hostileRun) watchWaiting(m *machine) {
	_, served := m.proc.member.Session()
	absent := m.proc.paused || r.inTrouble(m)
	if served || absent || !r.w.reaches(m, r.host) {
		r.waits[m] = r.w.now
	}
	if !served || absent {
		r.steady[m] = r.w.now
	}
	if !m.proc.member.Alone() || absent {
		r.alone[m] = r.w.now
	}
	if r.w.now.Sub(later(r.waits[m], r.hostSince)) > blockBound {
		r.breach(wasBlocked, m, "not served for %v by a host that answers", blockBound)
	}
}

// watchHost finds out that the end of a host that does not answer is not reported by
// all. One member can do that: a host that gossip counts in may be lost to the
// member alone that receives nothing from it, which then stays, and gossip is not signed.
// Those that have reported the end begin anew if they are too few.
func (r *hostileRun) watchHost() {
	h := r.host.proc
	if h == nil || !h.paused || r.w.now.Before(r.stallEnds.Add(-300*time.Millisecond)) {
		return
	}
	if r.w.now.Sub(r.hostRan) < 4*time.Second {
		return
	}
	for _, m := range r.honest {
		if m.proc == nil || m.proc.paused || r.inTrouble(m) || m.proc.member.self == (addr.Incarnation{}) {
			continue
		}
		if v := r.w.check.views[m.proc]; v != nil && v.in[addr.Host] != 0 {
			r.hostHidden = true
		}
	}
}

// buried reports whether the end of d is reported, and finds out that it is not in
// time: by the host, and then to every honest member; and by each of these while
// it is alone.
func (r *hostileRun) buried(d dead) bool {
	w := r.w
	bound := w.tm.Silence + 2*w.tm.Check + reportSlack
	for _, m := range r.honest {
		if r.counts(m, d) && w.now.Sub(later(d.from, r.alone[m])) > bound {
			r.breach(wasHidden, d.at, "incarnation %v ended at %v, and machine %d, without a host, still counts it in", d.incarnation, d.from.Sub(w.start), m.index)
			return true
		}
	}
	from := later(d.from, r.hostSince)
	if !r.hostBooted.Before(d.from) {
		from, bound = later(from, r.hostBooted), w.tm.Grace+2*w.tm.Check+reportSlack
	}
	h := r.host.proc
	if h == nil || h.paused || w.now.Sub(from) < bound {
		return false
	}
	if _, there := h.host.Sessions()[d.incarnation]; there {
		r.breach(wasHidden, d.at, "incarnation %v ended at %v, and the host still counts it in", d.incarnation, d.from.Sub(w.start))
		return true
	}
	if w.now.Sub(from) < bound+time.Second {
		return false
	}
	for _, m := range r.honest {
		if r.counts(m, d) && w.now.Sub(r.steady[m]) > time.Second {
			r.breach(wasHidden, d.at, "incarnation %v ended at %v, and machine %d still counts it in", d.incarnation, d.from.Sub(w.start), m.index)
		}
	}
	return true
}

// counts reports whether m still has the dead incarnation in its view.
func (r *hostileRun) counts(m *machine, d dead) bool {
	if m == d.at || m.proc == nil {
		return false
	}
	v := r.w.check.views[m.proc]
	return v != nil && v.self != (addr.Incarnation{}) && v.in[d.incarnation.Node] == d.incarnation.Generation
}
