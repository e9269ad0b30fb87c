package membership

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// sweepEvery is the time between two looks at what has lasted too long.
	sweepEvery = time.Second
	// speechless is how long a session may stay without asking for a life, and
	// lifeless how long without getting one.
	speechless = 3 * time.Second
	lifeless   = 15 * time.Second
	// maxLifeless bounds the sessions without a life in all, those of nodes that
	// live aside, and maxLifelessEach those of one node.
	maxLifeless     = 64
	maxLifelessEach = 2
	// lifelessGrace is how long such a session keeps its place while others want it:
	// an honest node asks for a life at once.
	lifelessGrace = 250 * time.Millisecond
)

// An opening says how far a node has come on its session with this host.
type opening struct {
	at    time.Time
	asked bool // for a life
	over  bool // its place is another one's
}

// sweep ends sessions and lifelines whose peers' certificates have expired, and at
// the host the sessions on which nobody lives.
func (a *Agent) sweep(now time.Time) {
	if now.Sub(a.swept) < sweepEvery {
		return
	}
	a.swept = now
	wall, until := a.clock.now(a.cfg.Faults.Now(), now), make(map[addr.UUID]time.Time)
	for _, n := range a.member.Nodes() {
		until[n.UUID] = n.Until
	}
	expired := func(id trust.Identity) bool { // a newer certificate counts, of which the table tells
		return id.Node != a.self.UUID && wall.After(id.NotAfter) && wall.After(until[id.Node])
	}
	for id, s := range a.sessions {
		o, accepted := a.openings[id]
		switch age := now.Sub(o.at); {
		case expired(s.Identity()):
			s.Close("the certificate has expired")
		case !accepted || a.host.Speaks(id):
		case !o.asked && age > speechless, age > lifeless:
			s.Close("no life is asked for")
		}
	}
	for _, l := range a.lines {
		for _, up := range append([]*control.Lifeline{l.up}, l.extra...) {
			if up != nil && expired(up.Identity()) {
				up.Close("the certificate has expired")
			}
		}
	}
}

// crowded reports whether a node has too many sessions on which it does not live, or
// all nodes together that do not live at all. Of the latter the oldest one ends for the
// new one's sake: nodes that wait for nothing keep nobody out who wants to live.
func (a *Agent) crowded(node addr.UUID) bool {
	all, own := 0, 0
	var oldest verdict.SessionID
	for id, o := range a.openings {
		if o.over || a.host.Speaks(id) {
			continue
		}
		peer := a.sessions[id].Peer().UUID
		if peer == node {
			own++
		}
		if _, lives := a.host.LifeOf(peer); lives {
			continue
		}
		if all++; all == 1 || id < oldest { // sessions are numbered as they are opened
			oldest = id
		}
	}
	if own >= maxLifelessEach {
		return true
	}
	if _, lives := a.host.LifeOf(node); lives || all < maxLifeless {
		return false
	}
	o := a.openings[oldest]
	if time.Since(o.at) < lifelessGrace {
		return true
	}
	o.over = true
	a.openings[oldest] = o
	a.sessions[oldest].Abort()
	return false
}

// takeRequest completes a Join or Resume by what the host knows of its sender. It
// reports false if the sender may not speak; then its session ends.
func (a *Agent) takeRequest(id verdict.SessionID, s *control.Session, m verdict.Message) (verdict.Message, bool) {
	if o := a.openings[id]; !o.asked {
		o.asked = true
		a.openings[id] = o
	}
	var err error
	switch r := m.(type) {
	case verdict.Join:
		r.Vouched, err = a.enroller.vouch(s.Identity(), r.Name)
		m = r
	case verdict.Resume:
		r.Vouched, err = a.enroller.vouch(s.Identity(), r.Name)
		m = r
	case verdict.CheckResult:
		m = a.believed(s, r)
	}
	if err != nil {
		s.Close(err.Error())
	}
	return m, err == nil
}
