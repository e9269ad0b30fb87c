// Package membership says who is in the cluster: identities, ID leases granted
// by the host, gossip as rumour, control links as proof, and verdicts that a
// node's life is over.
package membership

import "github.com/fabricd/fabricd/membership/verdict"

// The words of this package are those of its deciding part.
type (
	// A Node is what is known of one life of one node.
	Node = verdict.Node
	// A State is what a node believes of a life.
	State = verdict.State
	// A Reason says why a life was removed.
	Reason = verdict.Reason
	// An EventKind is what an Event tells.
	EventKind = verdict.EventKind
	// An Event is a change of the cluster as this node sees it.
	Event = verdict.Event
	// Evidence is what a data link tells membership about a life.
	Evidence = verdict.Evidence
)

// What a node believes of a life; see [verdict.State].
const (
	Alive   = verdict.Alive
	Suspect = verdict.Suspect
	Leaving = verdict.Leaving
	Removed = verdict.Removed
)

// Why a life was removed; see [verdict.Reason].
const (
	ReasonLeft        = verdict.ReasonLeft
	ReasonCrashed     = verdict.ReasonCrashed
	ReasonSilent      = verdict.ReasonSilent
	ReasonRestarted   = verdict.ReasonRestarted
	ReasonPartitioned = verdict.ReasonPartitioned
)

// What an Event tells; see [verdict.EventKind].
const (
	EventAdded   = verdict.EventAdded
	EventRemoved = verdict.EventRemoved
	EventSelf    = verdict.EventSelf
	EventReset   = verdict.EventReset
	EventHost    = verdict.EventHost
	EventUpdated = verdict.EventUpdated
	EventLocal   = verdict.EventLocal
)

// What a data link tells about a life; see [verdict.Evidence].
const (
	LinkAlive   = verdict.LinkAlive
	LinkSilent  = verdict.LinkSilent
	LinkReset   = verdict.LinkReset
	LinkFenced  = verdict.LinkFenced
	LinkRefused = verdict.LinkRefused
)

// What an EventHost's Detail says; see package verdict.
const (
	HostReachable = verdict.HostReachable
	HostLost      = verdict.HostLost
)
