// Package services decides which service names of nodes are known, and which lists
// are sent to which node and when. It has no clock and does no I/O.
//
// A node sends the host its whole list, again after each change; the host sends every
// member the lists of all lives. A list replaces the one before it, so only the
// newest list of each life waits to be sent, however often it changes. A life's list
// goes with the life.
package services
