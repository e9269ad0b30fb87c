//go:build !race

package verdict

// fewSeeds is how many random schedules a plain run tries.
const fewSeeds = 300
