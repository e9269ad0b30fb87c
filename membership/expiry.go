package membership

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// sweepEvery is the time between two calls of sweep that do work.
	sweepEvery = time.Second
	// speechless is how long a session may stay without asking for an incarnation, and
	// lifeless how long without getting one.
	speechless = 3 * time.Second
	lifeless   = 15 * time.Second
	// maxLifeless bounds the sessions without an incarnation in all, those of nodes that
	// live aside, and maxLifelessEach those of one node.
	maxLifeless     = 64
	maxLifelessEach = 2
	// lifelessGrace is how long an honest node may take to ask for an incarnation.
	lifelessGrace = 250 * time.Millisecond
)

// An opening says how far a node has come on its session with this host.
type opening struct {
	at    time.Time
	asked bool // for an incarnation

	second   time.Time // in which requests are counted
	requests int
}

// sweep ends sessions and lifelines if the peer's certificate has expired, and at
// the host the sessions that serve no incarnation.
func (a *Agent) sweep(now time.Time) {
	if now.Sub(a.swept) < sweepEvery {
		return
	}
	a.swept = now
	wall, until := a.cfg.Now(), make(map[addr.UUID]time.Time)
	for _, n := range a.member.Nodes() {
		until[n.UUID] = n.Until
	}
	expired := func(id trust.Identity) bool { // a newer certificate counts if the table has it
		return id.Node != a.self.UUID && wall.After(id.NotAfter) && wall.After(until[id.Node])
	}
	for id, s := range a.sessions {
		o, accepted := a.openings[id]
		switch age := now.Sub(o.at); {
		case expired(s.Identity()):
			s.Close("the certificate has expired")
		case !accepted || a.host.Speaks(id):
		case !o.asked && age > speechless, age > lifeless:
			s.Close("no incarnation is asked for")
		}
	}
	for _, l := range a.lines.All() {
		for _, up := range append([]*control.Lifeline{l.up}, l.extra...) {
			if up != nil && expired(up.Identity()) {
				up.Close("the certificate has expired")
			}
		}
	}
}

// makeRoom ends a session that serves no incarnation if the node has too many of those,
// or all nodes together have: the oldest one, and first one that has not even asked
// for an incarnation. So a session that asks at once is heard, whatever others keep open.
func (a *Agent) makeRoom(node addr.UUID) {
	var all, own []verdict.SessionID
	for id := range a.openings {
		s := a.sessions[id]
		if s == nil || a.host.Speaks(id) {
			continue
		}
		all = append(all, id)
		if s.Peer().UUID == node {
			own = append(own, id)
		}
	}
	switch {
	case len(own) >= maxLifelessEach:
		a.endOldest(own)
	case len(all) >= maxLifeless:
		a.endOldest(all)
	}
}

// endOldest ends one of the sessions. One that is so young that an honest node's
// would not have asked yet is the last to be chosen.
func (a *Agent) endOldest(of []verdict.SessionID) {
	rank := func(id verdict.SessionID) int {
		switch o := a.openings[id]; {
		case o.asked:
			return 1
		case time.Since(o.at) < lifelessGrace:
			return 2
		}
		return 0
	}
	id := slices.MinFunc(of, func(x, y verdict.SessionID) int { // they are numbered as they were opened
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x, y))
	})
	a.sessions[id].Abort()
	delete(a.openings, id) // it is not to be chosen again
}

// takeRequest adds the host's own knowledge of the sender to a Join or Resume. It
// reports false if the sender may not speak; then its session ends.
func (a *Agent) takeRequest(id verdict.SessionID, s *control.Session, m verdict.Message) (verdict.Message, bool) {
	if !a.mayAsk(id, m) {
		s.Close("too many requests")
		return m, false
	}
	var err error
	switch r := m.(type) {
	case verdict.Join:
		r.Vouched, err = a.enroller.vouch(s.Identity(), r.Name())
		last, had := a.host.HadLast(r.Want)
		r.WantFree = had && a.enroller.get(last) == nil
		m = r
	case verdict.Resume:
		r.Vouched, err = a.enroller.vouch(s.Identity(), r.Name())
		m = r
	case verdict.CheckResult:
		m = a.believed(s, r)
	}
	if err != nil {
		s.Close(err.Error())
	}
	return m, err == nil
}

// maxRequests bounds the requests of a session in a second that cost the host a
// table each, a write or a line to every member. An honest node asks for an incarnation
// again four times a second at most.
const maxRequests = 16

// mayAsk counts a message that asks for something. It reports false if there were
// enough in this second.
func (a *Agent) mayAsk(id verdict.SessionID, m verdict.Message) bool {
	o, ok := a.openings[id]
	if !ok {
		return true // it has been chosen to end
	}
	switch m.(type) {
	case verdict.Join, verdict.Resume:
		o.asked = true
	case verdict.Sync:
	default:
		return true
	}
	if now := time.Now(); now.Sub(o.second) >= time.Second {
		o.second, o.requests = now, 0
	}
	o.requests++
	a.openings[id] = o
	return o.requests <= maxRequests
}
