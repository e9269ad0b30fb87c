package driver

// What tests of package driver_test look at.
var (
	WindowFor = windowFor
	CostOf    = costOf
)

const ConnCost = connCost

// Copied returns how many bytes of writes are under way whose callers do not wait.
func (n *Node) Copied() int64 { return n.budget.copied.Load() }
