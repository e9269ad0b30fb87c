package engine

import (
	"testing"

	"github.com/fabricd/fabricd/internal/core"
)

// TestOnlyWhatWaitsIsWithdrawn: a request that has been granted is the endpoint's
// connection, even if that has ended already; a closed endpoint sends no other one.
func TestOnlyWhatWaitsIsWithdrawn(t *testing.T) {
	for state, granted := range map[core.State]bool{core.Connected: true, core.Disconnected: true, core.Closed: false} {
		c := &conn{}
		e := &endpoint{state: state, conn: c}
		if e.withdraw(c) || e.conn != c {
			t.Errorf("in state %v the request was withdrawn", state)
		}
		if got := e.grantedLocked(c); got != granted {
			t.Errorf("in state %v it counts as granted: %v, want %v", state, got, granted)
		}
		if e.grantedLocked(&conn{}) {
			t.Errorf("in state %v another one counts as granted", state)
		}
	}
}
