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
// What one end of a connection sends is a function of the connection's nonce,
// the side and the position ([Fill]); what it writes into the peer's window is
// a function of the connection, the operation's number and the position in it
// (the tags). So the other end compares alone.
package workload
