package daemon

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// A Setting is one value that a flag, an environment variable or a line of the
// configuration file can set. All three write the same text.
type Setting struct {
	Key     string // the flag's name and the file's key: "data-port"
	Usage   string // one line for --help
	Allowed string // the allowed values

	set func(c *Config, text string) bool // false: not one of those allowed
	get func(c *Config) string
}

// Env returns the environment variable of the setting: "FABRIC_DATA_PORT".
func (s Setting) Env() string {
	return "FABRIC_" + strings.ToUpper(strings.ReplaceAll(s.Key, "-", "_"))
}

// Switch reports whether the setting is true or false: its flag needs no value.
func (s Setting) Switch() bool { return s.Allowed == "true or false" }

// Words returns the values that are allowed, if they are a few words: "a, b or c".
func (s Setting) Words() []string {
	words := strings.Split(strings.Replace(s.Allowed, " or ", ", ", 1), ", ")
	if len(words) < 2 || slices.ContainsFunc(words, func(w string) bool { return strings.ContainsAny(w, " :;.") }) {
		return nil
	}
	return words
}

// Value returns the setting's value in c, in the form that it is written in.
func (s Setting) Value(c Config) string { return s.get(&c) }

// Settings returns all settings, in the order in which --help lists them.
func Settings() []Setting { return slices.Clone(settings) }

// settings is the only list of all settings.
var settings = slices.Concat(nodeSettings, pageSettings(), accessSettings(), gatewaySettings(), quotaSettings(), ringSettings(), logSettings)

var nodeSettings = []Setting{
	text("role", "what this node is: the cluster's host, or a node", "host or node",
		func(c *Config) *string { return (*string)(&c.Role) }, oneOf("host", "node")),
	text("name", "name of this node in tables and logs", "1 to 63 letters, digits, '.', '-' or '_'",
		func(c *Config) *string { return &c.Name }, validName),
	number("node-id", "the only node ID that this node takes; the host refuses it, and says why, if another node has or had it",
		"one that is free", 1, int(addr.FirstReserved)-1, func(c *Config) *addr.NodeID { return &c.NodeID }),
	list("join", "data addresses of members; the host's to join first", "host:port, separated by commas",
		func(c *Config) *[]string { return &c.Join }, validHostPort),
	text("token-file", "file with the join token", "path of a file",
		func(c *Config) *string { return &c.TokenFile }, nil),
	text("state-dir", "directory of identity, keys and leases", "path of a directory",
		func(c *Config) *string { return &c.StateDir }, notEmpty),
	{"bind", "address to listen on for other nodes", "an IP address, 0.0.0.0 or :: for all",
		func(c *Config, s string) bool {
			a, err := netip.ParseAddr(s)
			c.Network.Bind = a
			return err == nil
		},
		func(c *Config) string { return c.Network.Bind.String() }},
	text("advertise", "address that other nodes dial; found out if empty", "an IP address or a host name",
		func(c *Config) *string { return &c.Network.Advertise }, validAdvertise),
	port("data-port", "UDP and TCP port for data", func(c *Config) *uint16 { return &c.Network.DataPort }),
	port("gossip-port", "UDP and TCP port for gossip", func(c *Config) *uint16 { return &c.Network.GossipPort }),
	text("socket", "Unix socket that applications attach to", "path of at most 107 bytes",
		func(c *Config) *string { return &c.Local.Socket }, validSocket),
	text("socket-group", "group that owns the socket; this process's if empty", "name or number of a group",
		func(c *Config) *string { return &c.Local.SocketGroup }, nil),
	{"socket-mode", "permissions of the socket", "octal, 0600 to 0777", setMode,
		func(c *Config) string { return fmt.Sprintf("%04o", c.Local.SocketMode) }},
	text("admin", "Unix socket of the operator commands, mode 0600", "path of at most 107 bytes",
		func(c *Config) *string { return &c.Local.AdminSocket }, validSocket),
	ids("admin-uids", "users that may bind ports below 1024", func(c *Config) *[]uint32 { return &c.Local.AdminUIDs }),
	ids("admin-gids", "groups that may bind ports below 1024", func(c *Config) *[]uint32 { return &c.Local.AdminGIDs }),
	text("ca", "certificates of an operator's own CA", "path of a PEM file",
		func(c *Config) *string { return &c.TLS.CA }, nil),
	text("cert", "this node's certificate from that CA", "path of a PEM file",
		func(c *Config) *string { return &c.TLS.Cert }, nil),
	text("key", "the private key of that certificate", "path of a PEM file",
		func(c *Config) *string { return &c.TLS.Key }, nil),
	text("detection", "how soon a silent node is given up", "fast, normal or calm",
		func(c *Config) *string { return &c.Detection }, oneOf("fast", "normal", "calm")),
	text("lost-pair", "what becomes of two nodes that have lost only each other, at the host: reset keeps both in the fabric, evict removes the node with more accusers",
		"reset or evict", func(c *Config) *string { return &c.LostPair }, oneOf("reset", "evict")),
	{"providers", "what carries the data", providersAllowed, setProviders,
		func(c *Config) string { return strings.Join(c.Providers, ",") }},
	toggle("tcp-plaintext", "let tcp go without TLS once both ends have proved their identity, on networks that no stranger can reach; the same at every node",
		func(c *Config) *bool { return &c.TCPPlaintext }),
	text("paths", "when a connection to another node gets sockets of its own, for messages to the other application and for RMA to its node: after a few, or never",
		"lazy or off", func(c *Config) *string { return &c.Paths }, oneOf(pathsLazy, pathsOff)),
	number("max-paths", "how many such sockets there may be, of each of which fabricd holds one descriptor; further connections stay on the link",
		"three eighths of RLIMIT_NOFILE", 1, maxPathsMost, func(c *Config) *int { return &c.MaxPaths }),
	span("connect-timeout", "how long a connect waits for its accept", "a duration from 100ms to 10m",
		100*time.Millisecond, 10*time.Minute, func(c *Config) *time.Duration { return &c.ConnectTimeout }),
	span("certificate-validity", "how long the certificates are valid that the host issues; each is renewed after two thirds of it",
		"a duration from 1m to 3650d; d is a day", membership.MinCertificateValidity, trust.CAValidity, func(c *Config) *time.Duration { return &c.CertificateValidity }),
	number("max-nodes", "how many identities the host lets into the cluster, banned ones included",
		"", 1, membership.MaxNodes, func(c *Config) *int { return &c.MaxNodes }),
	{"allowed-networks", "at the host: networks in which members may say that they are reached; everywhere if empty", "networks like 10.0.0.0/8, separated by commas, or nothing",
		setNetworks, networksOf},
	toggle("enable-faults", "let the operator break this node on purpose, with fabricd faults", func(c *Config) *bool { return &c.EnableFaults }),
}

var logSettings = []Setting{
	text("log-level", "the least important messages to log", "trace, debug, info, warn or error",
		func(c *Config) *string { return &c.Log.Level }, oneOf("trace", "debug", "info", "warn", "error")),
	text("log-format", "how log lines look", "console or json",
		func(c *Config) *string { return &c.Log.Format }, oneOf("console", "json")),
	text("audit-log", "where joins, bans, refusals and administrators' commands are written, as JSON lines; audit.jsonl in the state directory if empty",
		"path of a file, stderr or off", func(c *Config) *string { return &c.Log.Audit }, nil),
}

// text returns a setting of one string; valid nil allows every string.
func text(key, usage, allowed string, field func(*Config) *string, valid func(string) bool) Setting {
	return Setting{key, usage, allowed,
		func(c *Config, s string) bool {
			if valid != nil && !valid(s) {
				return false
			}
			*field(c) = s
			return true
		},
		func(c *Config) string { return *field(c) }}
}

// list returns a setting of strings separated by commas, at most 64 of them.
func list(key, usage, allowed string, field func(*Config) *[]string, valid func(string) bool) Setting {
	return Setting{key, usage, allowed,
		func(c *Config, s string) bool {
			items := split(s)
			if len(items) > 64 {
				return false
			}
			for i, item := range items {
				if !valid(item) || slices.Contains(items[:i], item) {
					return false
				}
			}
			*field(c) = items
			return true
		},
		func(c *Config) string { return strings.Join(*field(c), ",") }}
}

// toggle returns a setting that is true or false.
func toggle(key, usage string, field func(*Config) *bool) Setting {
	return Setting{key, usage, "true or false",
		func(c *Config, s string) bool {
			*field(c) = s == "true"
			return s == "true" || s == "false"
		},
		func(c *Config) string { return strconv.FormatBool(*field(c)) }}
}

// port returns a setting of a port number.
func port(key, usage string, field func(*Config) *uint16) Setting {
	return Setting{key, usage, "a number from 0 to 65535; 0: a free port",
		func(c *Config, s string) bool {
			n, err := strconv.ParseUint(s, 10, 16)
			if err != nil {
				return false
			}
			*field(c) = uint16(n)
			return true
		},
		func(c *Config) string { return strconv.Itoa(int(*field(c))) }}
}

// autoWord is how a setting is written that follows something else, which is 0 in the configuration.
const autoWord = "auto"

// number returns a setting of a number in bounds. auto names the source of the value otherwise; empty:
// it always is a number.
func number[T ~int | ~uint16](key, usage, auto string, least, most int, field func(*Config) *T) Setting {
	return orAuto(Setting{key, usage, fmt.Sprintf("a number from %d to %d", least, most),
		func(c *Config, s string) bool {
			n, err := strconv.ParseUint(s, 10, 31)
			*field(c) = T(n)
			return err == nil && int(n) >= least && int(n) <= most
		},
		func(c *Config) string { return fmt.Sprint(*field(c)) }}, auto)
}

// bytesOf is number for bytes.
func bytesOf[T ~int | ~int64](key, usage, auto string, least, most int64, field func(*Config) *T) Setting {
	return orAuto(Setting{key, usage, fmt.Sprintf("a size from %s to %s", sizeText(least), sizeText(most)),
		func(c *Config, s string) bool {
			n, ok := parseSize(s, most)
			*field(c) = T(n)
			return ok && n >= least
		},
		func(c *Config) string { return sizeText(int64(*field(c))) }}, auto)
}

// orAuto lets a setting be auto too, unless that stands for nothing.
func orAuto(s Setting, auto string) Setting {
	if auto == "" {
		return s
	}
	return Setting{s.Key, s.Usage, autoWord + ": " + auto + "; or " + s.Allowed,
		func(c *Config, text string) bool {
			if text == autoWord {
				s.set(c, "0")
				return true
			}
			return s.set(c, text)
		},
		func(c *Config) string {
			if text := s.get(c); text != "0" {
				return text
			}
			return autoWord
		}}
}

// span returns a setting of a duration in bounds.
func span(key, usage, allowed string, least, most time.Duration, field func(*Config) *time.Duration) Setting {
	return Setting{key, usage, allowed,
		func(c *Config, s string) bool {
			d, err := parseDays(s)
			*field(c) = d
			return err == nil && d >= least && d <= most
		},
		func(c *Config) string { return days(*field(c)) }}
}

// ids returns a setting of user or group numbers separated by commas.
func ids(key, usage string, field func(*Config) *[]uint32) Setting {
	return Setting{key, usage, "numbers separated by commas, or nothing",
		func(c *Config, s string) bool {
			var all []uint32
			for _, item := range split(s) {
				n, err := strconv.ParseUint(item, 10, 32)
				if err != nil {
					return false
				}
				all = append(all, uint32(n))
			}
			*field(c) = all
			return true
		},
		func(c *Config) string {
			var items []string
			for _, n := range *field(c) {
				items = append(items, strconv.FormatUint(uint64(n), 10))
			}
			return strings.Join(items, ",")
		}}
}

// split cuts s at its commas; an empty s has no items.
func split(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	items := strings.Split(s, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

func setMode(c *Config, s string) bool {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || n&0o600 != 0o600 {
		return false
	}
	c.Local.SocketMode = fs.FileMode(n)
	return true
}

// maxNetworks bounds the networks of a setting.
const maxNetworks = 64

func setNetworks(c *Config, s string) bool {
	items := split(s)
	if len(items) > maxNetworks {
		return false
	}
	var all []netip.Prefix
	for _, item := range items {
		p, err := netip.ParsePrefix(item)
		if err != nil || p != p.Masked() { // 10.1.2.3/8 is a mistake that would allow more than it says
			return false
		}
		all = append(all, p)
	}
	c.AllowedNetworks = all
	return true
}

func networksOf(c *Config) string {
	var items []string
	for _, p := range c.AllowedNetworks {
		items = append(items, p.String())
	}
	return strings.Join(items, ",")
}

const day = 24 * time.Hour

// parseDays is time.ParseDuration that also knows whole days: "90d".
func parseDays(s string) (time.Duration, error) {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		count, err := strconv.ParseUint(n, 10, 16) // so that no product overflows
		return time.Duration(count) * day, err
	}
	return time.ParseDuration(s)
}

// days returns d in the form that parseDays reads, in days if they are whole.
func days(d time.Duration) string {
	if d > 0 && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

func oneOf(words ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(words, s) }
}

func notEmpty(s string) bool { return s != "" }

// validName is addr.ValidName for a name that is a label of DNS too.
func validName(s string) bool { return len(s) <= 63 && addr.ValidName(s) }

func validHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || !validAdvertise(host) || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// validAdvertise accepts the empty string, an IP address that is somewhere, and strings that look
// like a host name.
func validAdvertise(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return !a.IsUnspecified()
	}
	return s == "" || addr.ValidHost(s)
}

// maxSocketPath is the longest path that a Unix socket's address holds.
const maxSocketPath = 107

func validSocket(s string) bool { return s != "" && len(s) <= maxSocketPath }
