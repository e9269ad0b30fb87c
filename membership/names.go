package membership

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// names is the agent's record of services. Owned by the loop, but for anew.
type names struct {
	anew  signal // this node serves other names
	own   services.Own
	host  services.Host // of the host: the lists of all members
	book  services.Book // of another node: the lists that the host sends
	timer *time.Timer   // for lists that are due later
	stale bool          // a list may be due
	stray uint64        // lists that were passed over: of an incarnation that is not their sender's

	barred []string // names of this node that the host does not announce
}

func newNames() names {
	n := names{anew: newSignal(), timer: time.NewTimer(0)}
	n.anew.send() // for names served before the agent starts
	return n
}

// ServesAnew notifies that Config.Serves would have another answer. It does not wait, and may
// be called from any goroutine.
func (a *Agent) ServesAnew() { a.names.anew.send() }

// known returns the services of other nodes; on the host also those of this node.
func (a *Agent) known() *services.Book {
	if a.host != nil {
		return &a.names.host.Book
	}
	return &a.names.book
}

// sendDueNames sends the lists that are due, if a change since the last call made one due.
func (a *Agent) sendDueNames() {
	if !a.names.stale {
		return
	}
	a.names.stale = false
	now := time.Now()
	next := a.sendOwnNames(now)
	if a.host != nil {
		if later := a.sendAllNames(now); next.IsZero() || !later.IsZero() && later.Before(next) {
			next = later
		}
	}
	if !next.IsZero() {
		a.names.timer.Reset(next.Sub(now))
	}
}

// sendOwnNames sends this node's services to the host. It returns when it can again, if it has
// to wait for that; a list that waits for an incarnation or a session is sent with the next grant.
func (a *Agent) sendOwnNames(now time.Time) (next time.Time) {
	self := a.member.Self().Incarnation
	id, ok := a.member.Session()
	s := a.sessions.open[id]
	if self == noIncarnation || !ok || a.host == nil && (s == nil || s.Version() < control.ServicesVersion) {
		return time.Time{}
	}
	l, due, next := a.names.own.Due(now)
	if !due {
		return next
	}
	l.Incarnation = self
	if a.host != nil {
		a.names.host.Take(l, a.bars)
		return time.Time{}
	}
	_ = s.Send(l) // with the next session otherwise
	return time.Time{}
}

// sendAllNames sends the lists that have changed to every member. It returns when the next
// list is due.
func (a *Agent) sendAllNames(now time.Time) (next time.Time) {
	lists, next := a.names.host.Due(now)
	for _, l := range lists {
		a.auditBarred(l.Incarnation)
		for id := range a.sessions.open {
			if a.host.Speaks(id) {
				a.sendList(id, l)
			}
		}
		if l.Incarnation != a.member.Self().Incarnation {
			a.events.putServices(l)
		} else {
			a.answered(l)
		}
	}
	return next
}

func (a *Agent) sendList(id verdict.SessionID, l services.List) {
	if s := a.sessions.open[id]; s != nil && s.Version() >= control.ServicesVersion {
		_ = s.Send(l) // with the next session otherwise
	}
}

// named returns the node of an incarnation that the host serves.
func (a *Agent) named(incarnation addr.Incarnation) (Node, bool) {
	if self := a.member.Self(); self.Incarnation == incarnation {
		return self, true
	}
	return a.host.Living(incarnation)
}

// bars reports whether a rule keeps an incarnation from serving a name.
func (a *Agent) bars(incarnation addr.Incarnation, name string) bool {
	n, ok := a.named(incarnation)
	return ok && a.cfg.Bars != nil && a.cfg.Bars(n, name) != ""
}

// auditBarred writes the names that an incarnation wants to serve and the host does not announce.
func (a *Agent) auditBarred(incarnation addr.Incarnation) {
	n, ok := a.named(incarnation)
	for _, name := range a.names.host.Barred(incarnation) {
		if by := a.cfg.Bars(n, name); ok && by != "" {
			a.audit(Audit{Event: "serve-refused", Node: n.UUID, Name: n.Name(), Incarnation: incarnation, Text: by})
		}
	}
}

// RulesChanged notifies that Config.Bars would have other answers.
func (a *Agent) RulesChanged() {
	a.post(func() {
		if a.host != nil {
			a.names.host.RecheckAll(a.bars)
			a.names.stale = true
		}
	})
}

// answered takes the host's copy of this node's own list: all of it, unless a rule
// keeps this node from serving a name, or there is no room.
func (a *Agent) answered(l services.List) {
	barred, ok := a.names.own.Answered(l)
	if !ok || slices.Equal(barred, a.names.barred) {
		return
	}
	a.names.barred = barred
	a.cfg.Barred(barred)
}

// sendNames sends all services to a member that has just been granted its incarnation. Those
// that are due now follow.
func (a *Agent) sendNames(id verdict.SessionID) {
	for _, l := range a.names.host.Lists() {
		a.sendList(id, l)
	}
}

// grantedNames has the services of this node sent to a host that just granted its incarnation.
func (a *Agent) grantedNames(m verdict.Message) {
	if _, ok := m.(verdict.Grant); ok {
		if a.host == nil {
			a.names.book = services.Book{} // the host sends all of it again
		}
		a.names.own.Again()
		a.names.stale = true
	}
}

// takeServices takes a list of services from the other end of a session. A member
// sends that of its own incarnation only; a list of another incarnation, which it may have had a moment
// ago, is passed over.
func (a *Agent) takeServices(s *control.Session, id verdict.SessionID, l services.List) {
	if a.host != nil {
		if incarnation, ok := a.host.IncarnationOf(s.Peer().UUID); !ok || incarnation != l.Incarnation || !a.host.Speaks(id) {
			a.names.stray++
			a.log.Debug().Stringer("peer", s.Peer().UUID).Stringer("incarnation", l.Incarnation).Uint64("stray", a.names.stray).Msg("services of an incarnation that is not the sender's")
			return
		}
		a.names.host.Take(l, a.bars)
		a.names.stale = true
		return
	}
	if now, _ := a.member.Session(); now != id {
		return // the session before
	}
	if l.Incarnation == a.member.Self().Incarnation {
		a.answered(l)
		return
	}
	if a.names.book.Put(l) {
		a.events.putServices(l)
	}
}

// showNames passes on to the handler the services of an incarnation that was just added.
func (a *Agent) showNames(incarnation addr.Incarnation) {
	if l := a.known().Of(incarnation); l.Seq > 0 {
		a.events.putServices(l)
	}
}

// removeNames forgets the services of an incarnation that is over: its end notified the handlers.
func (a *Agent) removeNames(incarnation addr.Incarnation) {
	if a.host != nil {
		a.names.host.Remove(incarnation)
		a.names.stale = true // there may be room for others
		return
	}
	a.names.book.Remove(incarnation)
}
