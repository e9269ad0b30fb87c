package check_test

import (
	"testing"

	"github.com/fabricd/fabricd/internal/check"
	"github.com/fabricd/fabricd/internal/history"
)

// TestAListenerOutlivesTheLifeOfItsNode: to the next life of a node everybody is new,
// and what its listener accepts may be the first that an application hears of it.
func TestAListenerOutlivesTheLifeOfItsNode(t *testing.T) {
	base := correct(11, 4, 600)
	for name, later := range map[string]bool{"the same life": false, "the next life": true} {
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
			t.Errorf("a connection of %s to whom it was told is gone: %s, %v", name, j.Verdict, j.Violations)
		}
	}
}

// TestARemovalOfTheLifeBeforeIsOver: what a node is told of an end when it has a new life,
// of somebody whom it has not met in that, was under way before. It may meet him again.
func TestARemovalOfTheLifeBeforeIsOver(t *testing.T) {
	base := correct(11, 4, 600)
	for name, met := range map[string]bool{"not met": false, "met": true} {
		e := newEdit(base)
		i := find(e, 0, isRemoved)
		source, b := e.records[i].Source, *body[*event](e, i)
		next := b.Observer
		next.Generation++
		added := &event{What: history.EventAdded, Observer: next, Subject: b.Subject}
		before := []history.Body{&event{What: history.EventSelf, Observer: next, Subject: next}}
		if met {
			before = append(before, added)
		}
		for k, one := range before {
			e.insert(i-1+k, source, one)
		}
		i += len(before)
		e.insert(i, source, added)
		e.insert(i+1, source, &history.Opened{ConnEnd: history.ConnEnd{Conn: 9, Side: history.Server}, Local: b.Observer, Remote: b.Subject})
		e.records = e.records[:i+3] // what follows knows nothing of that
		result := check.Run(e.done(), nil)
		for _, invariant := range []string{"reset-all", "events"} {
			j, _ := result.Invariant(invariant)
			if broken := j.Verdict == check.Violated; broken != met {
				t.Errorf("it has %s him in this life, was told that he is gone, and that he is there: %s is %s, %v", name, invariant, j.Verdict, j.Violations)
			}
		}
	}
}
