// Package services decides which service names of nodes are known, and which lists
// are sent to which node and when. It has no clock and does no I/O.
//
// A node sends the host its whole list, again after each change; the host sends every
// member the lists of all incarnations. A list replaces the one before it, so only the
// newest list of each incarnation waits to be sent, however often it changes. An incarnation's list
// goes with the incarnation.
package services
