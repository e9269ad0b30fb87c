package daemon

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/observe"
)

// Status is the data of `fabricd status`, of one node.
type Status struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	Name    string `json:"name"`
	Role    Role   `json:"role"`
	State   string `json:"state"`            // joining, joined, local (no host has answered since the start) or leaving
	Detail  string `json:"detail,omitempty"` // the reason why joining waits

	Cluster    string          `json:"cluster"`
	Node       string          `json:"node"` // the UUID in the state directory
	Epoch      uint64          `json:"epoch"`
	Term       uint64          `json:"term"` // of the host
	ID         addr.NodeID     `json:"id"`   // addr.NoNode while joining
	Generation addr.Generation `json:"generation"`

	Host       string `json:"host"` // reachable or lost
	HostDetail string `json:"host_detail,omitempty"`

	Started   time.Time `json:"started"`
	UptimeSec int64     `json:"uptime_seconds"`

	Data      []string `json:"data_addresses"`
	Gossip    string   `json:"gossip_address"`
	Socket    string   `json:"socket"`
	Admin     string   `json:"admin"`
	HTTP      string   `json:"http,omitempty"` // address of the page and of metrics
	StateDir  string   `json:"state_dir"`
	Detection string   `json:"detection"`
	// Providers are the providers of the links, in the order of the setting; those of Unavailable
	// are configured and cannot be used.
	Providers   []string      `json:"providers"`
	Unavailable []Unavailable `json:"providers_unavailable,omitempty"`
	// TCPPlaintext: links over tcp go without TLS.
	TCPPlaintext bool `json:"tcp_plaintext,omitempty"`
	// Trust is the issuer of the certificates in use: host or operator.
	Trust string `json:"trust"`
	// Certificate is when this node's certificate ends; zero while joining. It
	// is renewed, or the operator's file read again, before that.
	Certificate time.Time `json:"certificate_until,omitzero"`

	// Rings are those of shared-memory paths between two applications of this node.
	Rings RingStatus `json:"rings"`

	// FaultsEnabled: the node may be broken on purpose, Warnings are the active faults.
	FaultsEnabled bool     `json:"faults_enabled"`
	Warnings      []string `json:"warnings,omitempty"`

	// Panics are those, since the start, that ended the state of a peer or an application here
	// instead of the process. Each is a bug; the log has its stack.
	Panics uint64 `json:"panics"`
	// Access are the access rules in force, in their order, and the decision without a matching
	// one.
	Access []AccessRule `json:"access"`

	Counts Counts `json:"counts"`

	// Findings are the problems that the node sees, the worst first. Only the admin interface has
	// them.
	Findings []Finding `json:"findings"`
}

// A Finding is a problem that a node sees.
type Finding = observe.Finding

// KindFault is the kind of the findings about faults, which are Warnings too.
const KindFault = observe.KindFault

// RingStatus is how two applications of one node talk past it.
type RingStatus struct {
	Slots     int    `json:"slots"`
	Data      int    `json:"data_bytes"`
	Release   int    `json:"release_percent"`
	HugePages string `json:"huge_pages"`            // off, try or require
	Small     string `json:"small_pages,omitempty"` // why there were none at the start, with try
	ShmPath   int    `json:"channel_bytes"`         // of both rings of a shared-memory path
	None      string `json:"none,omitempty"`        // why there are no shared-memory paths
}

// Counts are how much is going on.
type Counts struct {
	Nodes   int `json:"nodes"` // live, this one included
	Links   int `json:"links"`
	Conns   int `json:"conns"`
	Ports   int `json:"ports"`
	Windows int `json:"windows"`
	// Refused are the connections of peers, since the start, that ended before the peer was
	// authenticated as one that may talk to this node.
	Refused uint64 `json:"refused"`
	// StrayLists are lists of services that this host has passed over: of an incarnation that was
	// not their sender's.
	StrayLists uint64 `json:"stray_service_lists,omitempty"`
	// ConnMemory is how many bytes of memory connections have been promised, of
	// ConnMemoryLimit.
	ConnMemory      int64 `json:"conn_memory_bytes"`
	ConnMemoryLimit int64 `json:"conn_memory_limit_bytes"`
}
