package daemon

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/membership"
)

// A Role is a node's role in its cluster.
type Role string

const (
	// RoleHost is the one node of a cluster that grants IDs. It has ID 0.
	RoleHost Role = "host"
	// RoleNode is every other node.
	RoleNode Role = "node"
)

// A Config is the configuration of one fabricd. [Default] returns one to start from; it does not
// change after it was passed to [Start].
type Config struct {
	Role Role // host or node
	// Name is for people: in tables and logs. The machine's host name by default;
	// a host that is started with that keeps the name that Init gave it.
	Name string
	// NodeID is the only ID that the node takes; 0: any. A host has ID 0.
	NodeID addr.NodeID
	// named: the name is in the settings.
	named bool

	// Join lists members of the cluster, "host:port", the port being their data
	// port. A node that has not joined yet needs the host's; later any one that
	// answers is enough. A host needs none.
	Join []string
	// TokenFile holds the join token that `fabricd init` or `fabricd token create`
	// printed. It is needed until the node has joined once.
	TokenFile string
	StateDir  string // identity, keys, leases; one fabricd at a time

	// Detection is fast, normal or calm: how soon a silent node is given up,
	// against how long a busy one may pause.
	Detection string
	// LostPair is reset or evict: how a host treats two nodes that have lost only each other. With
	// reset both stay, and their connections end.
	LostPair string
	// Providers carry the data, the preferred one first: names, or ^ before the
	// first of those to leave out, or auto. shm is not of links: its place says
	// nothing.
	Providers []string
	// Paths is when a connection to another node gets a socket of its own between
	// the two applications: "lazy", after a few messages, or "off".
	Paths string
	// MaxPaths bounds those sockets, of each of which this process holds one descriptor; 0:
	// three eighths of the descriptors that it may have.
	MaxPaths int

	// TCPPlaintext turns TLS off on links over TCP after the handshake that authenticates both
	// ends: for networks that no third party can read or change. TCP between two nodes of which one
	// has it set is refused.
	TCPPlaintext bool
	// CertificateValidity is how long the certificates are valid that this host
	// issues, its own included, from a minute to ten years. Each is renewed when
	// two thirds of that are over. Of use on a host without an operator's CA.
	CertificateValidity time.Duration
	// MaxNodes bounds the identities that this host enrols, banned ones included.
	MaxNodes int
	// AllowedNetworks are those in which members may announce addresses;
	// none: everywhere. Of use on a host.
	AllowedNetworks []netip.Prefix
	// JoinToken bounds the token that Init makes; no setting sets it.
	JoinToken TokenLimits
	// ConnectTimeout is how long a connect waits for its accept.
	ConnectTimeout time.Duration
	// EnableFaults lets operators break the node on purpose.
	EnableFaults bool

	Network NetworkConfig
	Local   LocalConfig
	Access  AccessConfig
	// Gateways are those that the node runs.
	Gateways GatewayConfig
	TLS      TLSConfig
	Log      LogConfig
}

// NetworkConfig is where a node listens for other nodes.
type NetworkConfig struct {
	Bind       netip.Addr // address to listen on; unspecified: all
	Advertise  string     // address or name that others dial; empty: found out
	DataPort   uint16     // UDP and TCP; 0: a free one
	GossipPort uint16     // UDP and TCP; 0: a free one
}

// LocalConfig is how programs of this machine reach the node.
type LocalConfig struct {
	Socket      string      // applications attach here
	SocketGroup string      // group that owns Socket, by name or number; empty: the process's
	SocketMode  fs.FileMode // permission bits of Socket
	AdminSocket string      // operator commands; mode 0600
	HTTP        string      // "address:port" of the page and of metrics; empty: none
	HTTPToken   string      // file with the token that they need; may be empty on loopback
	AdminUIDs   []uint32    // users that may bind ports below 1024
	AdminGIDs   []uint32    // groups that may bind ports below 1024

	// Rings and HugePages are of the memory through which two applications of
	// this node talk.
	Rings     ring.Params
	HugePages shm.HugePages

	Quotas QuotaConfig
}

// TLSConfig names the files of an operator's own CA. All three are empty when
// the cluster's host issues the certificates.
type TLSConfig struct {
	CA, Cert, Key string // PEM files
}

// LogConfig configures the log and the audit log.
type LogConfig struct {
	Level  string // trace, debug, info, warn, error
	Format string // console or json
	// Audit is where the audit log goes: a file, AuditStderr or AuditOff; empty:
	// audit.jsonl in the state directory.
	Audit string
}

// machineName returns the name of a node that was given none.
func machineName() string {
	name, err := os.Hostname()
	switch {
	case err == nil && addr.ValidNodeName(name):
		return name
	case err == nil && addr.ValidNodeName("node-"+name): // digits alone, as the ID of a container may be
		return "node-" + name
	}
	return "node"
}

// Default returns the configuration of a node that nothing was said about.
func Default() Config {
	return Config{
		Role:           RoleNode,
		Name:           machineName(),
		StateDir:       "/var/lib/fabricd",
		Detection:      "normal",
		Paths:          pathsLazy,
		LostPair:       "reset",
		Providers:      []string{"quic", "tcp"},
		ConnectTimeout: 10 * time.Second,

		CertificateValidity: membership.CertificateValidity,
		MaxNodes:            1024,
		Network: NetworkConfig{
			Bind:       netip.IPv4Unspecified(),
			DataPort:   7700,
			GossipPort: 7701,
		},
		Local: LocalConfig{
			Socket:      "/run/fabricd/fabric.sock",
			SocketMode:  0o660,
			AdminSocket: "/run/fabricd/admin.sock",
			AdminUIDs:   []uint32{0},
			Rings:       ring.Default,
			Quotas:      defaultQuotas(),
		},
		Log: LogConfig{Level: "info", Format: "console"},
	}
}

// A Problem is one thing that is wrong with a configuration.
type Problem struct {
	Field   string // the setting, by the name that flags and files use
	Value   string // the value it was set to
	Source  string // where: "flag", "FABRIC_…", "file:line"; empty: the default
	Allowed string // the allowed values, or a remedy
}

// String returns the problem as one line.
func (p Problem) String() string {
	s := fmt.Sprintf("%s: %q", p.Field, p.Value)
	if p.Source != "" {
		s += " (" + p.Source + ")"
	}
	return s + ": " + p.Allowed
}

// A ConfigError holds everything that is wrong with a configuration or with
// the files and ports that it names. fabricd ends with exit code 2 on it.
type ConfigError struct {
	Problems []Problem
	// Err is the system's error, if there is one.
	Err error
}

// Error returns one line for each problem.
func (e *ConfigError) Error() string {
	s := ""
	for i, p := range e.Problems {
		if i > 0 {
			s += "\n"
		}
		s += p.String()
	}
	return s
}

// Unwrap returns the system's error.
func (e *ConfigError) Unwrap() error { return e.Err }

// problem returns a ConfigError with a single problem.
func problem(field, value, allowed string, err error) *ConfigError {
	return &ConfigError{Problems: []Problem{{Field: field, Value: value, Allowed: allowed}}, Err: err}
}
