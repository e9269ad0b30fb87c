package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Lifeline is the evidence in the lifelines to one start of a node, one after the other.
type Lifeline struct {
	Shown addr.Incarnation // that the peer showed on the last one; the zero Incarnation before the first

	reported time.Time // the sign of life that was last reported
	silent   time.Time // when silence was last reported; zero: it is not silent
	doubted  time.Time // when a doubt was last sent to the others
	denied   denial    // the first of the last looks in a row that did not find an incarnation
}

// A denial is when a peer was first found not to be an incarnation.
type denial struct {
	incarnation addr.Incarnation
	at          time.Time
}

// Raise records that there is a new lifeline, on which the peer shows an incarnation.
func (l *Lifeline) Raise(shown addr.Incarnation) {
	l.Shown, l.reported, l.silent = shown, time.Time{}, time.Time{}
}

// Silent reports whether the lifeline is silent. One that is may stay so long after the
// network is back: its kernel waits ever longer before it sends again, or the other
// end has given it up and could not report it.
func (l *Lifeline) Silent() bool { return !l.silent.IsZero() }

// ResetTimers takes now for a sign of life, after this process paused.
func (l *Lifeline) ResetTimers(now time.Time) { l.reported, l.silent = now, time.Time{} }

// BeginLines begins a look at all lifelines, each of which LineEvidence is asked about.
func (p *Pace) BeginLines() { p.lines = time.Time{} }

// LineEvidence turns the last sign of life on a lifeline into evidence about an incarnation; 0: there is
// none. doubt: the others are to be notified that nothing of the incarnation arrives here.
func (p *Pace) LineEvidence(l *Lifeline, incarnation addr.Incarnation, alive, now time.Time) (e Evidence, doubt bool) {
	due, doubtful := alive.Add(p.lineBound()), alive.Add(p.t.Silence/2)
	doubt = !now.Before(doubtful) && l.Shown == incarnation && p.doubts(l, incarnation, now)
	switch {
	case !alive.Equal(l.reported) && now.Before(due):
		l.reported, l.silent = alive, time.Time{}
		e = l.speaksFor(incarnation)
	case !now.Before(due) && now.Sub(l.silent) >= p.t.Silence:
		l.silent = now
		if l.Shown == incarnation {
			e = LinkSilent
		}
	}
	if l.Silent() {
		due = l.silent.Add(p.t.Silence)
	} else if p.member.Alone() && now.Before(doubtful) {
		due = doubtful
	}
	if p.lines.IsZero() || due.Before(p.lines) {
		p.lines = due
	}
	return e, doubt
}

// speaksFor returns the evidence of a sign of life. The lifeline may speak for another incarnation
// of the same process: for an earlier one, then it is about to be closed, or for a later
// one, which proves that incarnation is over.
func (l *Lifeline) speaksFor(incarnation addr.Incarnation) Evidence {
	switch {
	case l.Shown == incarnation:
		return LinkAlive
	case l.Shown.Node == incarnation.Node && l.Shown.Generation > incarnation.Generation:
		return LinkFenced
	}
	return 0
}

// lineBound returns how long a lifeline may be silent. While all is well the
// host is the one to notice a silent node, by its session, and a lifeline that
// falls silent shows a pair that has lost only each other: that may take as long
// as the loss of a silent node, known only after a check. In doubt, and without a
// host, lifelines are the only evidence.
func (p *Pace) lineBound() time.Duration {
	if p.doubtful() {
		return p.t.Silence
	}
	return p.t.Silence + p.t.Check
}

// doubtEvery is the time between two doubts about one incarnation.
const doubtEvery = time.Second

// doubts reports whether to notify all others that nothing arrives from an incarnation that this node
// watches. With a host, which checks for all, no other node needs the doubt.
func (p *Pace) doubts(l *Lifeline, incarnation addr.Incarnation, now time.Time) bool {
	if !p.member.Alone() || !p.member.Watches(incarnation) || now.Sub(l.doubted) < doubtEvery {
		return false
	}
	l.doubted = now
	return true
}

// A DialResult is the result of a dial of an incarnation, the weaker first: of several addresses the
// strongest counts.
type DialResult uint8

// The results.
const (
	DialUntried    DialResult = iota // this node could not dial at all, which is no evidence about the other one
	DialUnanswered                   // no node answered
	DialFenced                       // its answer: our incarnation is over
	DialNewer                        // another start of it answered
	DialNotThere                     // it answered, and is not that incarnation: it is another one, or none
	DialAlive                        // it answered
)

// Answer compares the node that answered with the one that is meant.
func (c Contact) Answer(epoch uint64, incarnation addr.Incarnation) DialResult {
	switch {
	case epoch != c.Epoch:
		return DialNewer
	case incarnation != c.Incarnation:
		return DialNotThere
	}
	return DialAlive
}

// Outcome returns what the result is to a host that asked for a redial.
func (s DialResult) Outcome() RedialOutcome {
	switch s {
	case DialUntried:
		return RedialUntried
	case DialAlive, DialNotThere: // the process is there, and asks for an incarnation again
		return RedialAlive
	case DialNewer:
		return RedialNewer
	}
	return RedialFailed
}

// Met turns the result of a dial into evidence about an incarnation, as LineEvidence does. A node that does not show
// the incarnation may not have its grant yet: it is fenced if it has shown that incarnation before, or
// does not show it for as long as it might be silent.
func (p *Pace) Met(l *Lifeline, incarnation addr.Incarnation, met DialResult, now time.Time) (e Evidence, doubt bool) {
	denied := l.denied
	l.denied = denial{}
	switch met {
	case DialAlive:
		return LinkAlive, false
	case DialNewer:
		return LinkReset, false
	case DialFenced:
		return LinkFenced, false
	case DialUnanswered:
		return LinkRefused, p.doubts(l, incarnation, now)
	case DialNotThere:
		if denied.incarnation != incarnation {
			denied = denial{incarnation, now}
		}
		if l.denied = denied; l.Shown == incarnation || now.Sub(denied.at) >= p.t.Silence {
			return LinkFenced, false
		}
	}
	return 0, false
}
