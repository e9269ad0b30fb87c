package membership

import (
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
)

// sweep ends sessions and lifelines if the peer's certificate has expired, and at
// the host the sessions that serve no incarnation.
func (a *Agent) sweep(now time.Time) {
	if now.Sub(a.sessions.swept) < sweepEvery {
		return
	}
	a.sessions.swept = now
	wall, until := a.cfg.Now(), make(map[addr.UUID]time.Time)
	for _, n := range a.member.Nodes() {
		until[n.UUID] = n.Until
	}
	expired := func(id trust.Identity) bool { // a newer certificate counts if the table has it
		return id.Node != a.self.UUID && wall.After(id.NotAfter) && wall.After(until[id.Node])
	}
	for id, s := range a.sessions.open {
		o, accepted := a.sessions.openings[id]
		switch age := now.Sub(o.at); {
		case expired(s.Identity()):
			s.Close("the certificate has expired")
		case !accepted || a.host.Speaks(id):
		case !o.asked && age > speechless, age > lifeless:
			s.Close("no incarnation is asked for")
		}
	}
	for _, l := range a.lines.All() {
		for _, up := range l.connections() {
			if expired(up.Identity()) {
				up.Close("the certificate has expired")
			}
		}
	}
}

// takeRequest adds the host's own knowledge of the sender to a Join or Resume. It
// reports false if the sender may not speak; then its session ends.
func (a *Agent) takeRequest(id verdict.SessionID, s *control.Session, m verdict.Message) (verdict.Message, bool) {
	if !a.sessions.mayAsk(id, m) {
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
