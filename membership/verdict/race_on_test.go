//go:build race

package verdict

// fewSeeds is how many random schedules a plain run tries: fewer under the
// race detector, which finds nothing in a package without goroutines.
const fewSeeds = 60
