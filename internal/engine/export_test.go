package engine

import (
	"time"

	"github.com/fabricd/fabricd/internal/attach"
)

// For the tests of package engine_test.
var (
	CostOf = costOf
)

const ConnCost = connCost

// Copied returns how many bytes of writes are under way whose callers do not wait.
func (n *Node) Copied() int64 { return n.budget.copied.Load() }

// WindowFor is windowFor.
func WindowFor(most int, session, user, all, limit int64) (int, bool) {
	return windowFor(most, promised{session, user, all}, limit)
}

// RefusalFor is promised.refusal.
func RefusalFor(session, user, all, want, limit int64) error {
	return promised{session, user, all}.refusal(want, limit)
}

// SetPassTime sets passTime and returns a function that sets it back.
func SetPassTime(d time.Duration) (undo func()) {
	old := passTime
	passTime = d
	return func() { passTime = old }
}

// CloseWindows is endpoint.closeWindows.
func CloseWindows(ep attach.NodeEndpoint) { ep.(*endpoint).closeWindows() }

// LoseCount makes the node unable to count the bytes written to ep's RMA path.
func LoseCount(ep attach.NodeEndpoint) {
	p := &ep.(*endpoint).conn.rma.out
	p.mu.Lock()
	defer p.mu.Unlock()
	p.socket.Close()
}
