package membership

import (
	"time"

	"github.com/fabricd/fabricd/membership/verdict"
)

// machines are the deciding machines of a node. Owned by the loop.
type machines struct {
	host   *verdict.Host // nil on other nodes
	member *verdict.Member
	pace   verdict.Pace
	timer  *time.Timer // goes off at the next tick
	todo   []step      // inputs of the machines; the first is being performed
}

// A step is one input for one of the two machines.
type step struct {
	host   verdict.HostInput
	member verdict.MemberInput
}

// take has a machine decide about its input.
func (m *machines) take(s step, now time.Time) []verdict.Action {
	if s.host != nil {
		return m.pace.StepHost(now, s.host)
	}
	return m.pace.StepMember(now, s.member)
}

// rearm sets the timer to the next tick.
func (m *machines) rearm(now time.Time) {
	if at, changed := m.pace.Next(now); changed {
		m.timer.Reset(at.Sub(now))
	}
}
