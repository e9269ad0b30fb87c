package membership

import (
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// feedHost and feedMember step a machine with one input, perform its actions, and
// then step with the inputs that these cause at once. They run on the loop.
func (a *Agent) feedHost(in verdict.HostInput)     { a.feed(step{host: in}) }
func (a *Agent) feedMember(in verdict.MemberInput) { a.feed(step{member: in}) }

func (a *Agent) feed(s step) {
	a.todo = append(a.todo, s)
	if len(a.todo) > 1 {
		return // called while performing: the outer call goes on with it
	}
	for len(a.todo) > 0 {
		s := a.todo[0]
		actions := a.take(s, time.Now())
		if s.host != nil && a.host.Serving() != a.gossiped.serving {
			a.gossipSelf()
		}
		for _, x := range actions {
			a.perform(x, s.host != nil)
		}
		if len(actions) > 0 {
			a.published = false
		}
		a.todo = a.todo[1:]
	}
	a.todo = nil
}

// perform does one action of a machine.
func (a *Agent) perform(x verdict.Action, fromHost bool) {
	switch x := x.(type) {
	case verdict.Send:
		a.send(x, fromHost)
	case verdict.CloseSession:
		a.closeSession(x)
	case verdict.Note:
		a.log.Info().Msg(x.Text)
	case verdict.Persist:
		hitLeases(a.cfg.Faults, x.Leases, failpoint.GrantDecided, failpoint.RemovalDecided)
		a.disk.persist(x)
	case verdict.Redial:
		a.redial(x)
	case verdict.StepDown:
		a.ending = fmt.Errorf("this host steps down: %s", x.Text)
	case verdict.Emit:
		a.emit(x.Event)
	case verdict.DialHost:
		a.dialHost()
	case verdict.Probe:
		a.probe(x)
	case verdict.Look:
		a.lookAt(x)
	case verdict.Remember:
		a.remember(x)
	case verdict.SendLossReport:
		a.sendLossReport(x)
	case verdict.Revalidate:
		a.resetLineTimers(time.Now())
		a.cfg.Revalidate()
	case verdict.Halt:
		a.ending = fmt.Errorf("the host refused this node for good: %s: %s", x.Code, x.Text)
	case verdict.Departed:
		a.depart()
	default:
		panic(fmt.Sprintf("BUG: membership: no way to perform %T", x))
	}
}

// A pendingIncarnation is our own incarnation while it could not be written.
type pendingIncarnation struct{ verdict.Remember }

// remember writes our own incarnation, synced, before the later actions of the step. A
// failed write does not end an incarnation that the host has granted: it is written
// later.
func (a *Agent) remember(x verdict.Remember) {
	_ = a.cfg.Faults.Hit(failpoint.LeaseGranted)
	a.memory.pending = nil
	err := a.writeIncarnation(x)
	if err != nil && !errors.Is(err, state.ErrOldTerm) {
		a.log.Warn().Err(err).Stringer("incarnation", x.Incarnation).Msg("own incarnation is not remembered")
		a.memory.pending = &pendingIncarnation{x}
		a.rememberAgain(a.memory.pending)
	}
	_ = a.cfg.Faults.Hit(failpoint.LeaseRemembered)
}

func (a *Agent) writeIncarnation(x verdict.Remember) error {
	if x.Incarnation == noIncarnation {
		return a.cfg.State.AcceptTerm(x.Term)
	}
	return a.cfg.State.PutLease(state.Lease{Incarnation: x.Incarnation, Term: x.Term, Epoch: a.self.Epoch,
		Since: a.cfg.Faults.Now(), Signed: x.Lease})
}

// rememberAgain retries a failed write of remember after a while, until it succeeds
// or a newer incarnation takes its place.
func (a *Agent) rememberAgain(o *pendingIncarnation) {
	write := func() {
		if a.memory.pending != o {
			return
		}
		if a.writeIncarnation(o.Remember) != nil {
			a.rememberAgain(o)
			return
		}
		a.log.Info().Stringer("incarnation", o.Incarnation).Msg("own incarnation is remembered now")
		a.memory.pending = nil
	}
	time.AfterFunc(a.timing.Stall, func() { a.post(write) })
}

// emit shows an event's effect and hands it to the handlers.
func (a *Agent) emit(e verdict.Event) {
	a.note(e)
	ev := a.log.Info().Stringer("incarnation", e.Node.Incarnation).Str("name", e.Node.Name())
	if e.Reason != "" {
		ev = ev.Str("reason", string(e.Reason))
	}
	if e.Detail != "" {
		ev = ev.Str("detail", e.Detail)
	}
	ev.Msg(eventTexts[e.Kind])
	a.events.put(e)
	a.followEvent(e)
}

var eventTexts = map[verdict.EventKind]string{
	verdict.EventAdded:   "node added",
	verdict.EventRemoved: "node removed",
	verdict.EventSelf:    "this node has an ID",
	verdict.EventReset:   "this node's incarnation was ended by the others",
	verdict.EventHost:    "host state changed",
	verdict.EventUpdated: "node changed",
	verdict.EventLocal:   "this node serves the applications of its machine in its last incarnation",
}

// followEvent updates gossip and lifelines after an event.
func (a *Agent) followEvent(e verdict.Event) {
	switch e.Kind {
	case verdict.EventReset:
		a.gossipSelf()
		a.endIncarnations(e.Node.Incarnation)
		a.names.book = services.Book{}
	case verdict.EventSelf, verdict.EventHost:
		a.gossipSelf()
	case verdict.EventAdded:
		a.feedGossip(e.Node)
		a.showNames(e.Node.Incarnation)
	case verdict.EventUpdated:
		if a.host != nil { // it may have another name or other labels
			a.names.host.Recheck(e.Node.Incarnation, a.bars)
			a.names.stale = true
		}
	case verdict.EventRemoved:
		a.removeNames(e.Node.Incarnation)
		if l := a.lines.Find(verdict.Start{UUID: e.Node.UUID, Epoch: e.Node.Epoch}); l != nil && l.up != nil {
			l.up.Close("incarnation " + e.Node.Incarnation.String() + " is over")
		}
	}
}

// depart refuses new sessions and closes the lifelines, before gossip reports that
// this node leaves: a node that receives the report dials this one to verify it.
func (a *Agent) depart() {
	close(a.departed)
	for _, l := range a.lines.All() {
		a.endLine(l)
	}
}

// note stores the part of an event that other goroutines read: which incarnations are
// over and fenced from here on, and the state of the host. After a reset this node
// has another incarnation, and to that one no incarnation is over.
func (a *Agent) note(e verdict.Event) {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	switch e.Kind {
	case verdict.EventRemoved:
		a.view.over[e.Node.Incarnation.Node] = max(a.view.over[e.Node.Incarnation.Node], e.Node.Incarnation.Generation)
	case verdict.EventReset:
		clear(a.view.over)
	case verdict.EventHost:
		a.view.hostText = e.Detail
	}
}

// handle calls the handlers. It runs on events' goroutine, as handled does.
func (a *Agent) handle(e verdict.Event) {
	if e.Kind == verdict.EventRemoved {
		_ = a.cfg.Faults.Hit(failpoint.RemovalArrived)
	}
	a.cfg.OnEvent(e)
}

// handled notifies the member that the handlers of a removal have returned.
func (a *Agent) handled(e verdict.Event) {
	if e.Kind == verdict.EventRemoved {
		_ = a.cfg.Faults.Hit(failpoint.RemovalHandled)
		a.post(func() { a.feedMember(verdict.Handled{Incarnation: e.Node.Incarnation}) })
	}
}

// persisted passes the disk's answers on to the host.
func (a *Agent) persisted(in verdict.HostInput) {
	a.post(func() { a.feedHost(in) })
}
