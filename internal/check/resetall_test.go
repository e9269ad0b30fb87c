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
