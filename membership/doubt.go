package membership

import (
	"context"
	"time"

	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// sendDoubt notifies all others that this node receives nothing from an incarnation that it watches.
func (a *Agent) sendDoubt(l *line, incarnation Node) {
	var to []gossip.Key
	for _, n := range a.member.Nodes() {
		to = append(to, gossip.Key{UUID: n.UUID, Epoch: n.Epoch})
	}
	if err := a.gossip.SendDoubt(gossip.Key(l.Start), to); err != nil {
		a.log.Debug().Err(err).Stringer("incarnation", incarnation.Incarnation).Msg("a doubt was not sent to all other members")
	}
}

// takeDoubt passes on another node's doubt.
func (a *Agent) takeDoubt(d gossip.Doubt) {
	by, known := a.living(d.From)
	n, ok := a.living(d.About)
	if known && ok {
		a.feedMember(verdict.Doubt{By: by.Incarnation, Incarnation: n.Incarnation})
	}
}

// lookAt sees whether something answers or refuses where an incarnation was.
func (a *Agent) lookAt(x verdict.Look) {
	l := a.lines.At(verdict.Start{UUID: x.UUID, Epoch: x.Epoch})
	if l.Dialing {
		return // the dial that is under way decides
	}
	l.Dialing = true
	a.dialProbe(x.Contact, a.timing.Check, func(ctx context.Context, up *control.Lifeline, met verdict.DialResult) {
		silent := met == verdict.DialUnanswered && ctx.Err() != nil
		a.post(func() {
			l.Dialing = false
			if n, ok := a.lines.Living(l.Start); ok && !silent {
				a.lines.Met(l, n, met, time.Now())
			}
		})
		a.release(up)
	})
}
