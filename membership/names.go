package membership

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// names is what the agent knows of services. The loop owns all but anew.
type names struct {
	anew  chan struct{} // capacity 1: this node serves other names
	own   services.Own
	host  services.Host // of the host: what all members say
	book  services.Book // of another node: what the host says
	timer *time.Timer   // for what is told later
	stale bool          // something may be to be told
	stray uint64        // lists that were passed over: of a life that is not their sender's
}

func newNames() names {
	n := names{anew: make(chan struct{}, 1), timer: time.NewTimer(0)}
	n.anew <- struct{}{} // for what is served before the agent starts
	return n
}

// ServesAnew says that Config.Serves would have another answer. It does not wait, and may
// be called from any goroutine.
func (a *Agent) ServesAnew() {
	select {
	case a.names.anew <- struct{}{}:
	default: // the loop will ask
	}
}

// known is the book of what other nodes serve; on the host it has this node too.
func (a *Agent) known() *services.Book {
	if a.host != nil {
		return &a.names.host.Book
	}
	return &a.names.book
}

// tellNames tells what is due, if something has changed since it was asked last.
func (a *Agent) tellNames() {
	if !a.names.stale {
		return
	}
	a.names.stale = false
	now := time.Now()
	next := a.tellOwn(now)
	if a.host != nil {
		if later := a.tellAll(now); next.IsZero() || !later.IsZero() && later.Before(next) {
			next = later
		}
	}
	if !next.IsZero() {
		a.names.timer.Reset(next.Sub(now))
	}
}

// tellOwn tells the host what this node serves. It returns when it can again, if it has to
// wait for that; what waits for a life or a session is told with the next grant.
func (a *Agent) tellOwn(now time.Time) (next time.Time) {
	self := a.member.Self().Life
	id, ok := a.member.Session()
	s := a.sessions[id]
	if self == noLife || !ok || a.host == nil && (s == nil || s.Version() < control.ServicesVersion) {
		return time.Time{}
	}
	l, due, next := a.names.own.Due(now)
	if !due {
		return next
	}
	l.Life = self
	if a.host != nil {
		a.names.host.Take(l)
		return time.Time{}
	}
	_ = s.Send(l) // with the next session otherwise
	return time.Time{}
}

// tellAll tells every member what has become of services. It returns when there will be
// more to tell.
func (a *Agent) tellAll(now time.Time) (next time.Time) {
	lists, next := a.names.host.Due(now)
	for _, l := range lists {
		for id := range a.sessions {
			if a.host.Speaks(id) {
				a.sendList(id, l)
			}
		}
		if l.Life != a.member.Self().Life {
			a.events.putServices(l)
		}
	}
	return next
}

func (a *Agent) sendList(id verdict.SessionID, l services.List) {
	if s := a.sessions[id]; s != nil && s.Version() >= control.ServicesVersion {
		_ = s.Send(l) // with the next session otherwise
	}
}

// sendNames tells a member, which has just been granted its life, of all services. Those
// that are due now follow.
func (a *Agent) sendNames(id verdict.SessionID) {
	for _, l := range a.names.host.Lists() {
		a.sendList(id, l)
	}
}

// grantedNames has a host that has just granted this node's life told what it serves.
func (a *Agent) grantedNames(m verdict.Message) {
	if _, ok := m.(verdict.Grant); ok {
		if a.host == nil {
			a.names.book = services.Book{} // the host tells all of it again
		}
		a.names.own.Again()
		a.names.stale = true
	}
}

// hearServices takes what the other end of a session says that a life serves. A member
// says it of its own life only; a list of another one, which it may have had a moment ago,
// is passed over.
func (a *Agent) hearServices(s *control.Session, id verdict.SessionID, l services.List) {
	if a.host != nil {
		if life, ok := a.host.LifeOf(s.Peer().UUID); !ok || life != l.Life || !a.host.Speaks(id) {
			a.names.stray++
			a.log.Debug().Stringer("peer", s.Peer().UUID).Stringer("life", l.Life).Uint64("stray", a.names.stray).Msg("services of a life that is not the sender's")
			return
		}
		a.names.host.Take(l)
		a.names.stale = true
		return
	}
	if now, _ := a.member.Session(); now != id || l.Life == a.member.Self().Life {
		return // the session before, or what this node has said
	}
	if a.names.book.Put(l) {
		a.events.putServices(l)
	}
}

// showNames tells the handler what a life serves that it has just heard of.
func (a *Agent) showNames(life addr.Life) {
	if l := a.known().Of(life); l.Seq > 0 {
		a.events.putServices(l)
	}
}

// removeNames forgets what a life that is over has served: its end has told the handlers.
func (a *Agent) removeNames(life addr.Life) {
	if a.host != nil {
		a.names.host.Remove(life)
		a.names.stale = true // there may be room for others
		return
	}
	a.names.book.Remove(life)
}
