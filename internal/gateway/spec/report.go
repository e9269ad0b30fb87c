package spec

import "time"

// The kinds of an [Event].
const (
	Started   = "started"   // the gateway listens
	Listening = "listening" // of a Status alone
	Waiting   = "waiting"   // it does not now, Detail is the reason; it tries again
	Opened    = "opened"    // a connection leads through it
	Closed    = "closed"    // one has ended; Detail is the reason unless both ends have closed it in order
	Refused   = "refused"   // one was reset before it reached its target; Detail is the reason
	Barred    = "barred"    // the host does not announce the service; Detail is the reason
)

// An Event is a change of a gateway or of one of its connections.
type Event struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	Node   string    `json:"node,omitempty"` // Started: of the node, "1 (web-1)"
	At     string    `json:"at,omitempty"`   // Started: the address that it listens on
	Conn   *Conn     `json:"connection,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Lost   int       `json:"lost,omitempty"` // events before this one that the reader was too slow for
}

// A Conn is a connection that leads through a gateway.
type Conn struct {
	ID     uint64    `json:"id"`
	Since  time.Time `json:"since"`
	Client string    `json:"client"`         // that opened it: a node and a user, or a TCP address
	To     string    `json:"to"`             // the target that was dialed for it
	Node   string    `json:"node,omitempty"` // name of the other node
	Sent   int64     `json:"sent_bytes"`     // from the client
	Back   int64     `json:"received_bytes"` // to the client
	User   int64     `json:"user"`           // that the other node vouches for; -1: not known
}

// A Status is a gateway as the node runs it.
type Status struct {
	Kind    Kind   `json:"kind"`
	Listen  string `json:"listen"`
	To      string `json:"to"`
	Source  string `json:"source"` // SourceConfig or SourceCommand
	State   string `json:"state"`  // Listening, Waiting or Barred
	At      string `json:"at"`     // address that it listens on, while it does
	Detail  string `json:"detail"` // why it waits, or is barred
	Line    string `json:"line"`   // with all its options
	Open    int    `json:"open"`
	Total   uint64 `json:"total"`
	Refused uint64 `json:"refused"`
	Reset   uint64 `json:"reset"`        // that were not closed in order by both ends
	Failure string `json:"last_failure"` // why the latest of these two was
	Sent    int64  `json:"sent_bytes"`   // from clients, those of ended connections included
	Back    int64  `json:"received_bytes"`
	Conns   []Conn `json:"connections"`
}

// Sources of a [Status].
const (
	SourceConfig  = "configuration"
	SourceCommand = "command"
)
