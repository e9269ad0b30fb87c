package daemon

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership"
)

// TestTheLastLifeIsNeverShownAsJoined follows a node that serves its machine alone
// until the host answers: at no moment its last life is told as one of the cluster.
func TestTheLastLifeIsNeverShownAsJoined(t *testing.T) {
	r := newRoster()
	last, next := testNode(2, 10, "two"), testNode(2, 11, "two")
	for _, c := range []struct {
		kind  membership.EventKind
		node  membership.Node
		self  addr.Life
		local bool
	}{
		{membership.EventLocal, last, last.Life, true},
		{membership.EventSelf, next, next.Life, false},
		{membership.EventReset, next, addr.Life{Node: 2}, false},
		{membership.EventLocal, next, next.Life, true},
		{membership.EventReset, next, addr.Life{Node: 2}, false},
	} {
		r.apply(membership.Event{Kind: c.kind, Node: c.node}, time.Now())
		if self, local := r.place(); self != c.self || local != c.local {
			t.Errorf("after %v: %v, local %v; want %v, %v", c.kind, self, local, c.self, c.local)
		}
	}
}
