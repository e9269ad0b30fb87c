// Package workload is the application of a chaos run: a program that attaches to its
// node's fabricd, connects to its peers, sends, writes into their memory, waits in
// every call that can wait, and records all of that.
//
// An App is one process. It attaches again when its fabricd comes back, and for each
// attachment has a session, which owns every goroutine that uses it and waits for them.
// All its records go to one [Log], in the order of the observations: a record is
// written when the thing has happened, and a node event inside its handler, before the
// handler returns.
//
// Package load decides the bytes that each end of a connection sends, writes and has to
// find, for simulated applications too. An end here makes the calls of its tasks, each
// in a goroutine of its own.
package workload
