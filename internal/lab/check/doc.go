// Package check judges the history of a run: it compares the records of all nodes and applications
// with the promises of the fabric.
//
//	result := check.Run(records, s)   // s: the scenario, for its expectations; may be nil
//	if !result.OK() { … }
//
// It is pure: the same records give the same result. Each promise is a small machine of its own in
// a file of its own, which is fed with the records in order; its doc has its claim and the records
// that it needs. A machine without a record to judge reports that ([NotExercised]): an untested
// promise is not one that held. The cost is linear in the number of records.
//
// Before the machines run, one pass over the records makes the world: which node had which incarnation
// when, when processes ran, stood still and ended, which faults touched which nodes and links,
// which connection is between which nodes. Faults count from when the lab began to put them in
// place.
//
// The bounds are those that the design promises for the detection profile ([scenario.Bound]), plus
// an allowance for the lab ([scenario.Slack]).
//
// That connections which no fault touches do not stand still (I14) is judged in
// simulation only: processes share a machine, and wait for it. Real labs have the
// expectations of traffic and latency for that, and of a standstill of the lab itself
// [Result.Doubt].
//
// Promises that no history shows are checked elsewhere: I11 (what becomes of mappings of a lost node)
// is in the conformance suite.
package check
