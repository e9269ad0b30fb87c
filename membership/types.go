// Package membership decides which nodes are in the cluster: identities, ID leases granted
// by the host, gossip as a hint, control links as proof, and verdicts that a
// node's incarnation is over.
package membership

import "github.com/fabricd/fabricd/membership/verdict"

// The words of this package are those of its deciding part.
type (
	// A Node describes one incarnation of one node.
	Node = verdict.Node
	// A State is a node's view of whether an incarnation goes on.
	State = verdict.State
	// A Reason says why an incarnation was removed.
	Reason = verdict.Reason
	// An EventKind is the kind of change that an Event reports.
	EventKind = verdict.EventKind
	// An Event is a change of the cluster as this node sees it.
	Event = verdict.Event
	// Evidence is a data link's observation about an incarnation.
	Evidence = verdict.Evidence
)

// States of an incarnation; see [verdict.State].
const (
	Alive   = verdict.Alive
	Suspect = verdict.Suspect
	Leaving = verdict.Leaving
	Removed = verdict.Removed
)

// Why an incarnation was removed; see [verdict.Reason].
const (
	ReasonLeft        = verdict.ReasonLeft
	ReasonCrashed     = verdict.ReasonCrashed
	ReasonSilent      = verdict.ReasonSilent
	ReasonRestarted   = verdict.ReasonRestarted
	ReasonPartitioned = verdict.ReasonPartitioned
)

// Kinds of Event; see [verdict.EventKind].
const (
	EventAdded   = verdict.EventAdded
	EventRemoved = verdict.EventRemoved
	EventSelf    = verdict.EventSelf
	EventReset   = verdict.EventReset
	EventHost    = verdict.EventHost
	EventUpdated = verdict.EventUpdated
	EventLocal   = verdict.EventLocal
)

// Evidence of data links; see [verdict.Evidence].
const (
	LinkAlive   = verdict.LinkAlive
	LinkSilent  = verdict.LinkSilent
	LinkReset   = verdict.LinkReset
	LinkFenced  = verdict.LinkFenced
	LinkRefused = verdict.LinkRefused
)

// Details of an EventHost; see package verdict.
const (
	HostReachable = verdict.HostReachable
	HostLost      = verdict.HostLost
)
