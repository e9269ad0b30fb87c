// Package embed runs a whole fabricd node inside the calling process:
// membership, links and engine, without a daemon beside it. The process is the
// node: when it ends, the node is lost.
//
//	n, err := embed.Start(ctx, embed.Config{
//		StateDir:  "/var/lib/myservice/fabric",
//		Join:      []string{"host.example:7700"},
//		TokenFile: "/etc/myservice/join-token",
//	})
//	defer n.Close()
//	conn, err := n.Dial(ctx, "0:2050")
//
// Its connections to other nodes get sockets of their own as those of attached
// applications do (Config.Paths), and $FABRIC_LATENCY, $FABRIC_SPIN and
// $FABRIC_HUGE_PAGES mean the same as to [fabric.Attach].
//
// On macOS processes share no memory with a node: no application attaches by Config.Socket,
// and connections stay on the links between nodes.
package embed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Config configures the node. Only StateDir is needed, and Join and
// TokenFile until the node has joined its cluster once. Any other zero field
// means the default of the setting of the same name in `fabricd run`. It must not
// be changed after it has been passed to Start.
type Config struct {
	Host     bool   // the node is its cluster's host, and Init has made StateDir
	Name     string // for people; the machine's host name by default
	StateDir string // identity, keys, leases; one node at a time

	Join      []string // data addresses of members, "host:port"; the host's to join first
	TokenFile string   // the join token

	Bind       string // address to listen on; empty: all
	Advertise  string // address that others dial; empty: found out
	DataPort   int    // UDP and TCP; 0: 7700, negative: a free one
	GossipPort int    // UDP and TCP; 0: 7701, negative: a free one

	Detection      string        // fast, normal or calm; empty: normal
	LostPair       string        // reset or evict, of a host; empty: reset
	Providers      []string      // data transports, as fabricd's --providers: quic, tcp, the preferred one first, shm; empty: all
	TCPPlaintext   bool          // tcp goes without TLS behind the handshake; nodes that differ refuse each other's tcp
	Paths          string        // lazy or off: whether a connection to another node gets sockets of its own; empty: lazy
	MaxPaths       int           // how many of them there may be; 0: three eighths of the descriptors that the process may have
	ConnectTimeout time.Duration // how long a connect waits for its accept; 0: 10 s

	// Access are the access rules of the node's ports, as fabricd's setting access
	// has them: "2050-2059 from web-1 label:db bind 1000". They hold for this
	// process too. DefaultAccess, open or closed, decides without a rule; empty: open.
	Access        []string
	DefaultAccess string

	CA, Cert, Key string // PEM files of an operator's own CA; all or none

	// MaxNodes is how many identities a host lets into the cluster, and
	// AllowedNetworks those in which members may advertise addresses, like
	// 10.0.0.0/8; 0 and none: 1024, everywhere.
	MaxNodes        int
	AllowedNetworks []string
	// AuditLog is the file of the audit log, stderr or off; empty: audit.jsonl in
	// StateDir.
	AuditLog string

	// EnableFaults lets the users of AdminSocket break the node on purpose, as
	// fabricd's --enable-faults does.
	EnableFaults bool

	// Socket lets other applications of the machine attach to the node; empty:
	// none can. AdminSocket is for fabricd's operator commands; empty: none.
	Socket, AdminSocket string

	// Shared-memory paths between two applications of the node: messages and bytes on their way in
	// one direction, per cent that a receiver takes before it releases them (negative: none), and
	// off, try or require for huge pages. Zero fields: 256, 256 KiB, 25, off.
	RingSlots, RingData, RingRelease int
	RingHugePages                    string

	// ConnMemory is how many bytes of memory the node's connections may take for unread
	// messages; 0: half of the memory that the process may have. The others bound one
	// attached application, and all applications of one user to four times as much;
	// 0: 16384 endpoints, 1024 windows, 1 GiB of their memory.
	ConnMemory, AppWindowMemory int64
	AppEndpoints, AppWindows    int

	Log zerolog.Logger
}

// settings returns the configuration as fabricd's settings, which daemon.Load
// checks.
func (c Config) settings() map[string]string {
	s := map[string]string{
		"name": c.Name, "join": list(c.Join), "token-file": c.TokenFile,
		"bind": c.Bind, "advertise": c.Advertise,
		"data-port": number(c.DataPort), "gossip-port": number(c.GossipPort),

		"detection": c.Detection, "lost-pair": c.LostPair, "connect-timeout": notZero(c.ConnectTimeout),
		"providers": list(c.Providers), "tcp-plaintext": yes(c.TCPPlaintext), "enable-faults": yes(c.EnableFaults),
		"paths": c.Paths, "max-paths": notZero(c.MaxPaths), "conn-memory": notZero(c.ConnMemory),
		"access": list(c.Access), "default-access": c.DefaultAccess,

		"app-endpoints": notZero(c.AppEndpoints), "app-windows": notZero(c.AppWindows),
		"app-window-memory": notZero(c.AppWindowMemory),
		"ring-slots":        notZero(c.RingSlots), "ring-data": notZero(c.RingData),
		"ring-release": number(c.RingRelease), "ring-huge-pages": c.RingHugePages,

		"socket": c.Socket, "admin": c.AdminSocket,
		"ca": c.CA, "cert": c.Cert, "key": c.Key, "max-nodes": notZero(c.MaxNodes),
		"allowed-networks": list(c.AllowedNetworks), "audit-log": c.AuditLog,
	}
	maps.DeleteFunc(s, func(_, value string) bool { return value == "" })
	s["role"], s["state-dir"] = "node", c.StateDir
	if c.Host {
		s["role"] = "host"
	}
	return s
}

// The values of settings; "" is the default.

func list(all []string) string { return strings.Join(all, ",") }

func yes(on bool) string {
	if on {
		return "true"
	}
	return ""
}

func notZero[T comparable](v T) string {
	if v == *new(T) {
		return ""
	}
	return fmt.Sprint(v)
}

// number is notZero of a number whose 0 is given by a negative one.
func number(n int) string {
	if n < 0 {
		return "0"
	}
	return notZero(n)
}

// daemon checks the configuration.
func (c Config) daemon() (daemon.Config, error) {
	d, err := daemon.Load("", nil, c.settings())
	if err != nil {
		return d, err
	}
	d.Local.Socket, d.Local.AdminSocket = c.Socket, c.AdminSocket
	return d, nil
}

// Init makes a new cluster: c.StateDir becomes the state directory of its
// host. It returns a token with which up to 100 nodes join within a day, to be kept
// secret; `fabricd token create`, over AdminSocket, makes others. A
// directory that holds a node already is left as it is.
func Init(c Config) (token string, err error) {
	d, err := c.daemon()
	if err != nil {
		return "", err
	}
	return daemon.Init(d, "")
}

// A Node is a node of the fabric and this process's application on it. Its
// methods may be called from any goroutine.
type Node struct {
	*fabric.Node
	daemon *daemon.Daemon
	once   sync.Once // guards closing
	err    error     // of closing

	mu   sync.Mutex // guards the fields below
	apps []*fabric.Node
	over bool // Close has taken apps: no other may come
}

// Start starts a node and returns when it is a member of its cluster and has
// an ID, which takes as long as the host takes to answer. ctx bounds Start
// only. The error names every setting that cannot be used.
func Start(ctx context.Context, c Config) (*Node, error) {
	cfg, err := c.daemon()
	if err != nil {
		return nil, err
	}
	d, err := daemon.Start(ctx, cfg, daemon.Options{Log: c.Log, Version: "embedded"})
	if err != nil {
		return nil, err
	}
	n := &Node{daemon: d}
	if err = d.Ready(ctx); err == nil {
		n.Node, err = n.App()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return n, nil
}

// App returns another application on the node, with endpoints, quotas and
// events of its own. The caller closes it; Close of the node does, too.
func (n *Node) App() (*fabric.Node, error) {
	s, err := client.AttachTo(context.Background(), n.daemon)
	if err != nil {
		return nil, &fabric.OpError{Op: "attach", Local: fabric.Addr{Node: fabric.NoNode}, Err: err}
	}
	app := hook.Node(s).(*fabric.Node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		app.Close()
		return nil, &fabric.OpError{Op: "attach", Local: fabric.Addr{Node: fabric.NoNode}, Err: syscall.ENODEV}
	}
	n.apps = append(slices.DeleteFunc(n.apps, ended), app)
	return app, nil
}

// ended reports whether app was closed.
func ended(app *fabric.Node) bool { return wait.Over(app.Done()) }

// DataAddr returns the address under which other nodes reach this one,
// "host:port": the value for their Config.Join.
func (n *Node) DataAddr() string { return n.daemon.Status().Data[0] }

// Err returns why the node ended by itself, nil if it did not.
func (n *Node) Err() error { return n.daemon.Err() }

// leaveTimeout bounds how long Close takes to notify the other nodes.
const leaveTimeout = 5 * time.Second

// Close ends the node: its applications' endpoints are ended, and the bytes that they sent are
// delivered, followed by ECONNRESET where they have not closed. The other nodes see NodeRemoved
// with the reason "left". When Close returns the node is gone. A second Close does nothing.
func (n *Node) Close() error {
	n.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		n.mu.Lock()
		apps := n.apps
		n.apps, n.over = nil, true
		n.mu.Unlock()
		var closing sync.WaitGroup
		for _, app := range apps {
			closing.Go(func() { app.Close() }) // operations that it could not end are ended with the node
		}
		n.err = errors.Join(n.daemon.Leave(ctx), n.daemon.Close())
		closing.Wait()
	})
	return n.err
}
