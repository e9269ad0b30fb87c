// Package check judges the history of a run: it holds what all nodes and
// applications saw and did to what the fabric promises.
//
//	result := check.Run(records, s)   // s: the scenario, for its expectations; may be nil
//	if !result.OK() { … }
//
// It is pure: the same records give the same result. Each promise is a small
// machine of its own in a file of its own, which is fed with the records in
// order; its doc says what it claims and which records it needs. A machine that
// met nothing to judge says so ([NotExercised]): a promise that nobody tested
// is not one that held. The cost is linear in the number of records.
//
// Before the machines run, one pass over the records makes the world: which
// slot had which life when, when processes ran, stood still and ended, which
// faults touched what, which connection is between whom. Faults count from when
// the lab began to put them in place.
//
// The bounds are those that the design promises for the detection profile
// ([scenario.Bound]), plus what the lab needs ([scenario.Slack]).
//
// That connections which no fault touches do not stand still (I14) is judged in
// simulation only: processes share a machine, and wait for it. Real labs have the
// expectations of traffic and latency for that, and of a standstill of the lab itself
// [Result.Doubt].
//
// What no history shows is checked elsewhere: I11 (what becomes of mappings of a
// lost node) is in the conformance suite.
package check
