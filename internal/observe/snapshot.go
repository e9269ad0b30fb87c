// Package observe holds the state that one node knows at one moment, and lists its problems
// in words. It only decides: the time is in the snapshot.
package observe

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
)

// A Snapshot is the state that one node knows at one moment. Its slices are never nil in JSON
// for others; they are owned by the caller of the function that made it.
type Snapshot struct {
	Time  time.Time           `json:"time"`
	Self  Self                `json:"self"`
	Nodes []Node              `json:"nodes"`
	Links []engine.LinkInfo   `json:"links"`
	Ports []engine.PortInfo   `json:"ports"`
	Conns []engine.ConnInfo   `json:"conns"` // those that wait longest first; there may be more, see Totals
	Wins  []engine.WindowInfo `json:"-"`

	// Shown are the nodes of the matrix of round trips, by ID: not all if there are many.
	Shown []addr.NodeID `json:"shown"`
	// Rows are their reports on their links to each other, while a page is open. No decision
	// depends on them.
	Rows []Row `json:"rows"`

	Services []Service `json:"services"` // there may be more, see Totals
	Totals   Totals    `json:"totals"`
	Host     Host      `json:"host"`
	// Gateways are those that carry nothing.
	Gateways []Gateway `json:"-"`
	// Events are recent events, the oldest first.
	Events []Event `json:"events"`

	Counters engine.Counters   `json:"-"`
	Removals map[string]uint64 `json:"-"` // incarnations of other nodes that have ended, by reason
	Refusals map[string]uint64 `json:"-"` // by the kind of Event

	// Queues is how full the fullest queue of each kind is, Quotas the share of its bound that
	// the application or user nearest to it uses: 1 is all.
	Queues map[string]float64 `json:"-"`
	Quotas map[string]float64 `json:"-"`
	// Membership are the queues of membership's own goroutines; none while the node starts.
	Membership map[string]Queue `json:"-"`
}

// A Queue is the length of a queue, and its bound.
type Queue struct{ Waiting, Limit int }

// Self is this node.
type Self struct {
	ID         addr.NodeID     `json:"id"` // addr.NoNode: none yet
	Generation addr.Generation `json:"generation"`
	Name       string          `json:"name"`
	Role       string          `json:"role"`
	Version    string          `json:"version"`
	Cluster    string          `json:"cluster"`
	Started    time.Time       `json:"started"`
	State      string          `json:"state"` // joining, joined, local or leaving
	Detail     string          `json:"detail"`
	HostLost   bool            `json:"host_lost"`
	HostDetail string          `json:"host_detail"`
	// Certificate is when its certificate ends, and Renewal when it is to be renewed; zero: it
	// has none.
	Certificate time.Time `json:"certificate_until"`
	Renewal     time.Time `json:"renewal"`
	// ClockOff is how far the wall clock is from the clock for certificates and tokens;
	// JumpedBy is the last jump that was accepted, at JumpedAt.
	ClockOff time.Duration `json:"clock_off_ns"`
	JumpedBy time.Duration `json:"clock_jumped_by_ns"`
	JumpedAt time.Time     `json:"clock_jumped_at"`

	// Warnings are the faults that an operator has put in place.
	Warnings []string `json:"warnings"`
	// Providers carry links, the preferred one first.
	Providers []string `json:"providers"`
	// Unavailable are providers that the node is configured to use, and cannot.
	Unavailable []string `json:"unavailable"`
	Panics      uint64   `json:"panics"`
	Strangers   uint64   `json:"strangers"` // connections that ended before they had shown a member
}

// A Node is one incarnation in the node list.
type Node struct {
	ID         addr.NodeID     `json:"id"`
	Generation addr.Generation `json:"generation"`
	Name       string          `json:"name"`
	State      string          `json:"state"` // alive, suspect, leaving or removed
	Addresses  []string        `json:"addresses"`
	Since      time.Time       `json:"since"`
	// Suspect is since when this node has known it as suspect; zero: it is not.
	Suspect time.Time `json:"suspect_since"`
}

// A Row is the report of one other node on its links.
type Row struct {
	Node  addr.NodeID `json:"node"`
	Links []RowLink   `json:"links"`
}

// A RowLink is one of them, with its problems in this node's words.
type RowLink struct {
	Node        addr.NodeID     `json:"node"`
	Generation  addr.Generation `json:"generation"`
	Provider    string          `json:"provider"` // empty: another one than quic and tcp
	RoundTripUS int64           `json:"round_trip_us"`
	DeviationUS int64           `json:"deviation_us"`
	Severity    string          `json:"severity"` // of the worst reason; empty: none
	Reasons     []string        `json:"reasons"`
}

// A Service is a name that applications connect to.
type Service struct {
	Name    string `json:"name"`
	Node    string `json:"node"`    // name of the node that serves it
	Address string `json:"address"` // node:port
	// RoundTripUS is how far away that node is; -1 while it is not known.
	RoundTripUS int64 `json:"round_trip_us"`
}

// A Gateway is a line of the settings expose, forward, socks and http-proxy, or a command's.
type Gateway struct {
	Line   string // with its setting
	State  string // waiting or barred
	Detail string // why
}

// Totals are counts and their limits.
type Totals struct {
	Conns           int   `json:"conns"`
	Waiting         int   `json:"waiting"` // connections whose peer has received nothing for a second
	UnreadBytes     int64 `json:"unread_bytes"`
	UnsentBytes     int64 `json:"unsent_bytes"`
	Services        int   `json:"services"`
	Windows         int   `json:"windows"`
	WindowBytes     int64 `json:"window_bytes"`
	Paths           int   `json:"paths"`
	PathLimit       int   `json:"path_limit"`
	Descriptors     int64 `json:"descriptors"` // of the process; 0: not known
	DescriptorLimit int64 `json:"descriptor_limit"`
	DiskWrites      int   `json:"disk_writes"` // of membership, which the disk has not taken
	ConnMemory      int64 `json:"conn_memory_bytes"`
	ConnMemoryLimit int64 `json:"conn_memory_limit_bytes"`
}

// Host is the state that only the cluster's host knows.
type Host struct {
	Tokens []Token  `json:"tokens"`
	Banned []Banned `json:"banned"`
}

// A Token is a join token without its secret.
type Token struct {
	ID      string    `json:"id"`
	Expires time.Time `json:"expires"` // zero: it does not
	Usable  bool      `json:"usable"`
}

// A Banned is an identity that an administrator keeps out.
type Banned struct {
	Name   string    `json:"name"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Kinds of an Event, beside those of the node list.
const (
	JoinRefused    = "join-refused"
	ConnectRefused = "connect-refused"
	BindRefused    = "bind-refused"
)

// An Event is something that happened, Count times up to Time.
type Event struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // as in `fabricd events`, or a kind of the above
	Node  string    `json:"node"`  // node.generation; empty: of no incarnation
	Name  string    `json:"name"`
	Text  string    `json:"text"`
	Count uint64    `json:"count"`
}
