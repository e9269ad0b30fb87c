package daemon

import (
	"fmt"
	"io/fs"
	"math"
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
	text("name", "name of this node in tables and logs", "1 to 63 letters, digits, '.', '-' or '_', not digits alone, which are an ID",
		func(c *Config) *string { return &c.Name }, addr.ValidNodeName),
	number("node-id", "the only node ID that this node takes; the host refuses it, with the reason, if another node has or had it",
		"one that is free", 1, int(addr.FirstReserved)-1, func(c *Config) *addr.NodeID { return &c.NodeID }),
	list("join", "data addresses of members; the host's to join first", "host:port, separated by commas",
		func(c *Config) *[]string { return &c.Join }, validHostPort),
	text("token-file", "file with the join token", "path of a file",
		func(c *Config) *string { return &c.TokenFile }, nil),
	text("state-dir", "directory of identity, keys and leases", "path of a directory",
		func(c *Config) *string { return &c.StateDir }, notEmpty),
	setting("bind", "address to listen on for other nodes", "an IP address, 0.0.0.0 or :: for all",
		func(c *Config) *netip.Addr { return &c.Network.Bind }, form[netip.Addr]{good(netip.ParseAddr), netip.Addr.String}),
	text("advertise", "address that other nodes dial; found out if empty", "an IP address or a host name",
		func(c *Config) *string { return &c.Network.Advertise }, validAdvertise),
	port("data-port", "UDP and TCP port for data", func(c *Config) *uint16 { return &c.Network.DataPort }),
	port("gossip-port", "UDP and TCP port for gossip", func(c *Config) *uint16 { return &c.Network.GossipPort }),
	text("socket", "Unix socket that applications attach to", "path of at most 107 bytes",
		func(c *Config) *string { return &c.Local.Socket }, validSocket),
	text("socket-group", "group that owns the socket; this process's if empty", "name or number of a group",
		func(c *Config) *string { return &c.Local.SocketGroup }, nil),
	setting("socket-mode", "permissions of the socket", "octal, 0600 to 0777",
		func(c *Config) *fs.FileMode { return &c.Local.SocketMode }, modes),
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
	setting("providers", "what carries the data", providersAllowed, func(c *Config) *[]string { return &c.Providers },
		listOf(maxItems, words).where(validProviders)),
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
	setting("allowed-networks", "at the host: networks in which members may announce addresses; everywhere if empty", "networks like 10.0.0.0/8, separated by commas, or nothing",
		func(c *Config) *[]netip.Prefix { return &c.AllowedNetworks }, listOf(maxItems, networks)),
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

// A form is how the values of a setting are written.
type form[T any] struct {
	parse  func(text string) (T, bool) // false: not one of those allowed
	format func(T) string
}

// where allows only values that are valid.
func (f form[T]) where(valid func(T) bool) form[T] {
	return form[T]{func(s string) (T, bool) {
		v, ok := f.parse(s)
		return v, ok && valid(v)
	}, f.format}
}

// good returns parse with whether it has succeeded in place of its error.
func good[T any](parse func(string) (T, error)) func(string) (T, bool) {
	return func(s string) (T, bool) {
		v, err := parse(s)
		return v, err == nil
	}
}

// setting returns the setting whose value is at field.
func setting[T any](key, usage, allowed string, field func(*Config) *T, f form[T]) Setting {
	return Setting{key, usage, allowed,
		func(c *Config, s string) bool {
			v, ok := f.parse(s)
			if ok {
				*field(c) = v
			}
			return ok
		},
		func(c *Config) string { return f.format(*field(c)) }}
}

var (
	words    = form[string]{func(s string) (string, bool) { return s, true }, func(s string) string { return s }}
	switches = form[bool]{func(s string) (bool, bool) { return s == "true", s == "true" || s == "false" }, strconv.FormatBool}

	modes = form[fs.FileMode]{good(func(s string) (fs.FileMode, error) {
		n, err := strconv.ParseUint(s, 8, 32)
		return fs.FileMode(n), err
	}), func(m fs.FileMode) string { return fmt.Sprintf("%04o", m) }}.where(func(m fs.FileMode) bool { return m <= 0o777 && m&0o600 == 0o600 })

	// 10.1.2.3/8 is a mistake that would allow more than it says.
	networks = form[netip.Prefix]{good(netip.ParsePrefix), netip.Prefix.String}.where(func(p netip.Prefix) bool { return p == p.Masked() })
)

// numbers are whole numbers from least to most.
func numbers[T ~int | ~uint16 | ~uint32](least, most int64) form[T] {
	return form[T]{func(s string) (T, bool) {
		n, err := strconv.ParseUint(s, 10, 63)
		return T(n), err == nil && int64(n) >= least && int64(n) <= most
	}, func(n T) string { return fmt.Sprint(n) }}
}

// sizes are numbers of bytes from least to most.
func sizes[T ~int | ~int64](least, most int64) form[T] {
	return form[T]{func(s string) (T, bool) {
		n, ok := parseSize(s, most)
		return T(n), ok && n >= least
	}, func(n T) string { return sizeText(int64(n)) }}
}

// maxItems bounds the items of a list.
const maxItems = 64

// listOf are at most so many items, separated by commas.
func listOf[T any](most int, item form[T]) form[[]T] {
	return form[[]T]{func(s string) (all []T, ok bool) {
		for _, text := range split(s) {
			v, ok := item.parse(text)
			if !ok {
				return nil, false
			}
			all = append(all, v)
		}
		return all, len(all) <= most
	}, func(all []T) string {
		var texts []string
		for _, v := range all {
			texts = append(texts, item.format(v))
		}
		return strings.Join(texts, ",")
	}}
}

// text returns a setting of one string; valid nil allows every string.
func text(key, usage, allowed string, field func(*Config) *string, valid func(string) bool) Setting {
	if valid == nil {
		return setting(key, usage, allowed, field, words)
	}
	return setting(key, usage, allowed, field, words.where(valid))
}

// list returns a setting of different strings.
func list(key, usage, allowed string, field func(*Config) *[]string, valid func(string) bool) Setting {
	return setting(key, usage, allowed, field, listOf(maxItems, words.where(valid)).where(func(items []string) bool {
		return len(slices.Compact(slices.Sorted(slices.Values(items)))) == len(items)
	}))
}

// toggle returns a setting that is true or false.
func toggle(key, usage string, field func(*Config) *bool) Setting {
	return setting(key, usage, "true or false", field, switches)
}

// port returns a setting of a port number.
func port(key, usage string, field func(*Config) *uint16) Setting {
	return setting(key, usage, "a number from 0 to 65535; 0: a free port", field, numbers[uint16](0, math.MaxUint16))
}

// number returns a setting of a number in bounds. auto names the source of the value otherwise; empty:
// it always is a number.
func number[T ~int | ~uint16](key, usage, auto string, least, most int, field func(*Config) *T) Setting {
	return orAuto(key, usage, fmt.Sprintf("a number from %d to %d", least, most), auto, field, numbers[T](int64(least), int64(most)))
}

// bytesOf is number for bytes.
func bytesOf[T ~int | ~int64](key, usage, auto string, least, most int64, field func(*Config) *T) Setting {
	return orAuto(key, usage, fmt.Sprintf("a size from %s to %s", sizeText(least), sizeText(most)), auto, field, sizes[T](least, most))
}

// autoWord is how a setting is written that follows something else, which is 0 in the configuration.
const autoWord = "auto"

// orAuto returns a setting that may be auto too, unless that stands for nothing.
func orAuto[T comparable](key, usage, allowed, auto string, field func(*Config) *T, f form[T]) Setting {
	if auto == "" {
		return setting(key, usage, allowed, field, f)
	}
	var zero T
	return setting(key, usage, autoWord+": "+auto+"; or "+allowed, field, form[T]{func(s string) (T, bool) {
		if s == autoWord {
			return zero, true
		}
		return f.parse(s)
	}, func(v T) string {
		if v == zero {
			return autoWord
		}
		return f.format(v)
	}})
}

// span returns a setting of a duration in bounds.
func span(key, usage, allowed string, least, most time.Duration, field func(*Config) *time.Duration) Setting {
	return setting(key, usage, allowed, field, form[time.Duration]{good(parseDays), days}.where(func(d time.Duration) bool { return d >= least && d <= most }))
}

// ids returns a setting of user or group numbers separated by commas.
func ids(key, usage string, field func(*Config) *[]uint32) Setting {
	return setting(key, usage, "numbers separated by commas, or nothing", field, listOf(math.MaxInt, numbers[uint32](0, math.MaxUint32)))
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
