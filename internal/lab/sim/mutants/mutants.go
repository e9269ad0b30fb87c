package mutants

import (
	"fmt"
	"strings"
)

// A Mutant is one mistake.
type Mutant struct {
	Name string
	What string // the mistake, for people
	File string // from the root of the module
	Old  string // stands in File exactly once
	New  string // in its place

	By   string // what catches it: Simulation, or a package whose tests do
	Run  string // those of By's tests to run; empty: all, or the simulation's hunt
	Hint string // of the simulation: the scenario to begin with; empty: any
}

// Simulation catches a mutant by running whole clusters under faults.
const Simulation = "./internal/lab/sim"

// Apply returns the text of the mutant's file with the mistake in it. The error
// means that the file has changed, so that the mutant is stale.
func (m Mutant) Apply(text string) (string, error) {
	if n := strings.Count(text, m.Old); n != 1 {
		return "", fmt.Errorf("mutant %s is stale: %s has its text %d times, want once:\n%s", m.Name, m.File, n, m.Old)
	}
	return strings.Replace(text, m.Old, m.New, 1), nil
}
