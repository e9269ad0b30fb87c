// Package workload is the application of a chaos run: a program that attaches
// to its node's fabricd, connects to its peers, sends, writes into their memory,
// waits in every call that can wait, and writes down what it did and saw.
//
// An App is one process. It attaches again when its fabricd comes back, and for
// each attachment has a session, which owns every goroutine that talks through
// it and waits for them. All that it sees goes to one [Log], in the order in
// which it saw it: a record is written when the thing has happened, and a node
// event inside its handler, before the handler returns.
//
// What each end of a connection sends, writes and has to find, package load decides,
// for simulated applications too. An end here makes the calls of its tasks, each in a
// goroutine of its own.
package workload
