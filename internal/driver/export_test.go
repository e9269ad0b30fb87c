package driver

// What tests of package driver_test look at.
var (
	WindowFor = windowFor
	CostOf    = costOf
)

const ConnCost = connCost
