// Package mutants breaks the engine on purpose, one thing at a time, to show
// that its checks find mistakes. A [Mutant] is a replacement of text in one
// source file; it is applied with the -overlay flag of the go command, so that
// nothing in the tree changes.
//
// The test of the package holds every mutant to the sources: its text must be
// there exactly once, or the mutant is stale. With MUTANTS=all, or a list of
// names, it also runs what has to catch each of them, and fails if one survives:
//
//	make mutants
//
// Most are caught by the simulation: [Simulation] runs its hunt, which reports the
// scenario that found it. Those in the shells of engine and membership, which
// the simulation does not run, and those that only a dishonest peer would meet
// are caught by the tests of their packages.
package mutants
