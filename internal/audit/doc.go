// Package audit records admitted and refused nodes and the actions of administrators: JSON lines in
// a separate file, or a stream, apart from the log of the program.
//
// A line has the members of [Event] without the empty ones. The kinds are the constants of this
// package. A line never contains a secret: tokens and certificates are named by their IDs and
// serial numbers, and requests by their paths.
//
// Writing never delays the recorded action: a goroutine writes from a bounded queue. Events that do
// not fit, or cannot be written, are counted, and a line of kind lost reports their number as soon
// as one can be written. Refusals that unauthenticated peers can cause at any rate are counted by
// their common members: the first is written at once, and the others as one line a minute.
package audit
