//go:build !race

package sim_test

const (
	twiceSeeds  = 100    // that TestSameSeedSameHistory runs twice
	randomSeeds = 10     // of TestRandomSchedules, and half of it of the other two
	manyNodes   = true   // TestScale goes up to 200
	hours       = 6      // of TestHoursOfComingAndGoingLeaveNothing
	changes     = 10_000 // of membership, in TestChurn
	suiteEvery  = 1      // which scenarios TestSuite runs
)
