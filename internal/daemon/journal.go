package daemon

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/membership"
)

const (
	// journalMost bounds the events that a node keeps for its page.
	journalMost = 256
	// journalSame is how long a refusal like one before is counted there.
	journalSame = time.Minute
)

// A journal keeps what has happened lately at a node, and counts it.
type journal struct {
	mu       sync.Mutex        // guards the fields below; innermost
	events   []observe.Event   // of nodes
	denied   []observe.Event   // refusals, apart: strangers and applications can make as many as they like
	removals map[string]uint64 // by reason; see removalReasons
	refusals map[string]uint64 // by kind of event
	suspects map[addr.Life]time.Time
}

// removalReasons are those that incarnations are counted by; the last is of all others.
var removalReasons = []string{string(membership.ReasonLeft), string(membership.ReasonCrashed), string(membership.ReasonSilent),
	string(membership.ReasonRestarted), string(membership.ReasonPartitioned), "other"}

func newJournal() *journal {
	j := &journal{removals: map[string]uint64{}, suspects: map[addr.Life]time.Time{},
		refusals: map[string]uint64{observe.JoinRefused: 0, observe.ConnectRefused: 0, observe.BindRefused: 0}}
	for _, r := range removalReasons {
		j.removals[r] = 0
	}
	return j
}

// member keeps an event of membership.
func (j *journal) member(ev membership.Event, now time.Time) {
	line := eventOf(ev, ev.Node, now)
	e := observe.Event{Time: now, Event: line.Event, Name: ev.Node.Name(), Text: line.Detail, Count: 1}
	if line.Node != nil && line.Node.Generation != 0 {
		e.Node = ev.Node.Life.String()
	}
	if line.Reason != "" {
		e.Text = line.Reason + after(": ", line.Detail)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch ev.Kind {
	case membership.EventReset:
		clear(j.suspects)
	case membership.EventRemoved:
		delete(j.suspects, ev.Node.Life)
		reason := string(ev.Reason)
		if _, known := j.removals[reason]; !known {
			reason = "other"
		}
		j.removals[reason]++
	case membership.EventUpdated:
		if suspect := ev.Node.State == membership.Suspect; suspect == !j.suspects[ev.Node.Life].IsZero() {
			return // addresses or labels, which a member changes as it likes
		}
		e.Text = ev.Node.State.String()
		if ev.Node.State != membership.Suspect {
			delete(j.suspects, ev.Node.Life)
		} else if j.suspects[ev.Node.Life].IsZero() {
			j.suspects[ev.Node.Life] = now
		}
	}
	j.events = keep(j.events, e)
}

func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

// access keeps that an access rule has refused something.
func (j *journal) access(r engine.Refusal, now time.Time) {
	kind := observe.ConnectRefused
	if r.Bind {
		kind = observe.BindRefused
	}
	j.refused(observe.Event{Time: now, Event: kind, Node: r.Caller.Life.String(), Name: r.Caller.Name,
		Text: "port " + strconv.Itoa(int(r.Port)) + ", rule " + strconv.Quote(r.By)})
}

// join keeps that a node was not let in.
func (j *journal) join(m membership.Audit, now time.Time) {
	if m.Event == audit.JoinRefused {
		j.refused(observe.Event{Time: now, Event: observe.JoinRefused, Name: m.Name, Text: oneLine(m.Text)})
	}
}

// refused counts e, with one like it if there was one just before.
func (j *journal) refused(e observe.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refusals[e.Event]++
	for i, old := range slices.Backward(j.denied) {
		if e.Time.Sub(old.Time) > journalSame {
			break
		}
		if old.Event == e.Event && old.Name == e.Name && old.Node == e.Node && old.Text == e.Text {
			e.Count = old.Count
			j.denied = slices.Delete(j.denied, i, i+1)
			break
		}
	}
	e.Count++
	j.denied = keep(j.denied, e)
}

// keep returns events with e, without the oldest if there are too many.
func keep(events []observe.Event, e observe.Event) []observe.Event {
	if len(events) >= journalMost {
		events = slices.Delete(events, 0, 1)
	}
	return append(events, e)
}

// fill copies what is kept into s.
func (j *journal) fill(s *observe.Snapshot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Events = slices.Concat([]observe.Event{}, j.events, j.denied)
	slices.SortStableFunc(s.Events, func(a, b observe.Event) int { return a.Time.Compare(b.Time) })
	s.Removals, s.Refusals = map[string]uint64{}, map[string]uint64{}
	for k, v := range j.removals {
		s.Removals[k] = v
	}
	for k, v := range j.refusals {
		s.Refusals[k] = v
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Suspect = j.suspects[addr.Life{Node: n.ID, Generation: n.Generation}]
	}
}
