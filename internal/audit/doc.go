// Package audit writes who was let in, who was turned away and what
// administrators did: JSON lines in a file of its own, or a stream, apart from the
// log of the program.
//
// A line has the members of [Event], those that are empty left out. The kinds are
// the constants of this package. Nothing secret is ever in one: tokens and
// certificates are named by their IDs and serial numbers, and requests by their
// paths.
//
// Writing never delays what is written about: a goroutine writes from a bounded
// queue. What does not fit, or cannot be written, is counted, and a line of kind
// lost says how much that was, as soon as one can be written. Refusals that strangers
// can cause as often as they like are counted by what they have in common: the
// first is written at once, and the others as one line a minute.
package audit
