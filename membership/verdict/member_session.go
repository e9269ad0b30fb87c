package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A hostSession is a member's session with the host: the dial for it, and the request on it.
type hostSession struct {
	id       SessionID
	up       bool
	dialing  bool      // a DialHost is not answered yet
	dialAt   time.Time // the next may start
	askAt    time.Time // when to repeat the request
	deadline time.Time // of an answer to the request, or to the leave
	pinged   time.Time
	nonce    uint64 // of the newest Ping
}

// mayDial reports whether there is neither a session nor a dial for one.
func (s *hostSession) mayDial() bool { return !s.up && !s.dialing }

// lose forgets the session, and the request on it.
func (s *hostSession) lose() { s.up, s.askAt, s.deadline = false, time.Time{}, time.Time{} }

// ping returns the number of the next Ping, which is sent now.
func (s *hostSession) ping(now time.Time) uint64 {
	s.nonce++
	s.pinged = now
	return s.nonce
}

// stoodStill gives the answer to the request a fresh bound.
func (s *hostSession) stoodStill(now time.Time, t Timing) {
	if !s.deadline.IsZero() {
		s.deadline = now.Add(t.Silence)
	}
}

// A hostView is the state of the host as a member sees it.
type hostView struct {
	incarnation addr.Incarnation // in the table; the zero Incarnation if unknown
	lastSeen    time.Time        // last sign of life from it
	redial      time.Time        // when its ended session counts as a crash; zero: not in doubt
	alone       bool             // its incarnation is over for us: we decide for ourselves
	detail      string           // of the last EventHost
	confirm     uint64           // after a stall: the Ping whose Pong ends the doubt; else 0
	judgeFrom   time.Time        // no peer is judged before
}

// reachable reports whether the last event has shown the host as reachable.
func (v *hostView) reachable() bool { return v.detail == HostReachable }

// silentAt returns when the host has been silent for too long, if nothing arrives from it.
func (v *hostView) silentAt(t Timing) time.Time { return later(v.judgeFrom, v.lastSeen.Add(t.Silence)) }

// forget discards all about the host's incarnation.
func (v *hostView) forget() {
	v.incarnation, v.alone, v.redial, v.confirm = addr.Incarnation{}, false, time.Time{}, 0
}

// stoodStill gives the host fresh bounds.
func (v *hostView) stoodStill(now time.Time, t Timing) {
	v.lastSeen, v.judgeFrom = now, now.Add(t.Silence)
	if !v.redial.IsZero() {
		v.redial = now.Add(t.Redial)
	}
}
