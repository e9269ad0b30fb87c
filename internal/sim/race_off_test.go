//go:build !race

package sim_test

const (
	twiceSeeds = 100  // that TestSameSeedSameHistory runs twice
	manyNodes  = true // TestScale goes up to 200
)
