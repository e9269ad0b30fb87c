package check_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestAListenerOutlivesTheIncarnationOfItsNode: to the next incarnation of a node all others are new, and a
// connection that its listener accepts may be the first that an application sees of it.
func TestAListenerOutlivesTheIncarnationOfItsNode(t *testing.T) {
	base := correct(11, 4, 600)
	for name, later := range map[string]bool{"the same incarnation": false, "the next incarnation": true} {
		e := newEdit(base)
		i := find(e, 0, isRemoved)
		b := body[*event](e, i)
		local := b.Observer
		if later {
			local.Generation++
		}
		e.insert(i, e.records[i].Source, &history.Opened{ConnEnd: history.ConnEnd{Conn: 9, Side: history.Server}, Local: local, Remote: b.Subject})
		j, _ := check.Run(e.done(), nil).Invariant("reset-all")
		if broken := j.Verdict == check.Violated; broken == later {
			t.Errorf("a connection of %s to a node that was reported as gone: %s, %v", name, j.Verdict, j.Violations)
		}
	}
}

// TestARemovalOfTheIncarnationBeforeIsOver: a notice of an end that a node gets when it has a new incarnation,
// about a node that it has not met in that, was under way before, if it comes at once and once. The
// two may meet again.
func TestARemovalOfTheIncarnationBeforeIsOver(t *testing.T) {
	base := correct(11, 4, 600)
	for name, c := range map[string]struct {
		met, twice bool
		after      time.Duration // of the removal, behind the new incarnation
		resetAll   bool          // the broken invariant
		events     bool
	}{
		"not met":        {},
		"met":            {met: true, resetAll: true, events: true},
		"a second later": {after: time.Second, resetAll: true},
		"notified twice": {twice: true, events: true},
	} {
		e := newEdit(base)
		i := find(e, 0, isRemoved)
		source, b := e.records[i].Source, *body[*event](e, i)
		next := b.Observer
		next.Generation++
		added := &event{What: history.EventAdded, Observer: next, Subject: b.Subject}
		e.records = e.records[:i] // later records know nothing of this
		at := e.records[i-1].At
		put := func(body history.Body) {
			at++
			e.records = append(e.records, history.Record{At: at, Source: source, Body: body})
		}
		put(&event{What: history.EventSelf, Observer: next, Subject: next})
		if c.met {
			put(added)
		}
		at += int64(c.after)
		put(&b)
		if c.twice {
			put(&b)
		} else {
			put(added)
			put(&history.Opened{ConnEnd: history.ConnEnd{Conn: 9, Side: history.Server}, Local: b.Observer, Remote: b.Subject})
		}
		result := check.Run(e.done(), nil)
		for invariant, want := range map[string]bool{"reset-all": c.resetAll, "events": c.events} {
			j, _ := result.Invariant(invariant)
			if broken := j.Verdict == check.Violated; broken != want {
				t.Errorf("%s: %s is %s, %v", name, invariant, j.Verdict, j.Violations)
			}
		}
	}
}
