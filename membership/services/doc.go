// Package services decides what is known of the names that nodes serve, and what is told
// to whom and when. It has no clock and does no I/O.
//
// A node tells the host its whole list, again after each change; the host tells every
// member the lists of all lives. A list replaces the one before it, so what waits to be
// told is one list of each life, the newest, however often it changes. A life's list goes
// with the life.
package services
