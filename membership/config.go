package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/segment"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// Config describes how a node takes part in its cluster. It is not modified after
// Start.
type Config struct {
	// State is the open state directory of a node that has joined, or of the
	// host. Its role is the node's. It stays open after the agent's end.
	State *state.State
	// Trust holds the node's credentials; see [LoadTrust].
	Trust *trust.Store

	// Node describes this node to others.
	Node NodeConfig

	// Listener accepts control sessions, lifelines and joining nodes: the TCP
	// side of the data port. It belongs to the agent from Start on.
	Listener net.Listener
	// Dial opens a TCP connection. Nil: the system's.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Refused is called for every connection to Listener that does not authenticate
	// as an admitted node. It must not block. Nil: they are not counted.
	Refused func()
	// Seeds are data addresses, "host:port", of nodes to ask first.
	Seeds []string
	// Gossip describes where to gossip.
	Gossip GossipConfig

	// Detection chooses how soon a silent node is lost. Empty: normal.
	Detection gossip.Profile
	// Timing overrides the bounds that Detection chooses, if it is not zero.
	Timing verdict.Timing
	// Partial decides about two nodes that lost only each other.
	Partial verdict.PartialPolicy
	// CertificateValidity is how long the certificates are valid that this
	// host issues, a minute to ten years. Each is renewed after two thirds of its
	// incarnation. 0: [CertificateValidity].
	CertificateValidity time.Duration

	// Probe tries to reach an incarnation over the data path: nil if it answered. It
	// returns when ctx ends at the latest. Nil: a lifeline is opened instead.
	Probe func(ctx context.Context, incarnation addr.Incarnation) error
	// OnEvent is called for every change, in order, on one goroutine. When
	// it returns from an EventRemoved the removal counts as handled here.
	OnEvent func(Event)
	// Serves returns the node's services, as services.List has them; it is called after
	// [Agent.ServesAnew] and must not block. OnServices is called, on OnEvent's goroutine,
	// with the current services of another incarnation, after the event that has added it; a
	// incarnation's end ends its services. Nil: nothing is served, OnServices is not called.
	Serves     func() []services.Service
	OnServices func(addr.Incarnation, []services.Service)
	// Bars returns the rule that keeps a node from serving a name, "" if there is none; of
	// use on the host, which announces no such name. Nil: no rule does. Barred is called with
	// the names of Serves that the host does not announce; may be nil. Neither must block.
	Bars   func(n Node, name string) (rule string)
	Barred func(names []string)
	// Revalidate is called when this process noticed that it stood still:
	// every link serves nothing until both ends have confirmed both incarnations in a
	// fresh round trip. It must not block. Nil: nothing is done.
	Revalidate func()

	// Audit is called for each line of the audit log. It must not block and may be
	// called from any goroutine. Nil: there is no audit log.
	Audit func(Audit)
	// MaxNodes bounds the identities that the host enrols, banned ones included, up
	// to [MaxNodes]. 0: 1024.
	MaxNodes int
	// Networks are those in which members may announce addresses; empty:
	// everywhere. Of use on the host.
	Networks []netip.Prefix

	// Now returns the time of day by which certificates and tokens begin and end. Nil:
	// a [trust.Clock] by the wall clock of Faults.
	Now func() time.Time
	// Faults are those of this node; its wall clock is theirs. Nil: none.
	Faults *failpoint.Node

	// Seed makes jitter repeatable.
	Seed uint64
	Log  zerolog.Logger
}

// A NodeConfig describes a node to the others.
type NodeConfig struct {
	Name      string   // at most verdict.MaxName bytes
	Addresses []string // where its providers, and Listener, are reached: "host:port"
	Providers []string
	// Want is the only ID that the node takes; 0: any. A node has one ID for good: the
	// host refuses one that has got another before. A host has the ID 0.
	Want addr.NodeID
}

// A GossipConfig describes where to gossip; see the fields of the same name of
// [gossip.Config].
type GossipConfig struct {
	Bind      string
	Advertise string
	Packets   net.PacketConn
	Streams   net.Listener
	Dial      func(ctx context.Context, address string) (net.Conn, error)
	Seeds     []string // gossip addresses of nodes to speak to first
	// Sighted is called with the gossip addresses that other nodes claim. It must not
	// block. Nil: it is not called.
	Sighted func(node addr.UUID, gossip netip.AddrPort)
}

// host reports whether the configured node is the host.
func (c *Config) host() bool { return c.State.Identity().Role == state.Host }

func (c *Config) withDefaults() (*Config, error) {
	d := *c
	switch {
	case d.State == nil || d.Trust == nil || d.Listener == nil:
		return nil, errors.New("start membership: state, trust and listener are needed")
	case !d.State.Joined():
		return nil, errors.New("start membership: this node belongs to no cluster yet: join one with a token")
	}
	own, id := d.Trust.Identity(), d.State.Identity()
	if own.Cluster != id.Cluster || own.Node != id.Node {
		return nil, fmt.Errorf("start membership: the certificate is for %s, the state directory is of node %s of cluster %s",
			own, id.Node, id.Cluster)
	}
	if d.host() && !own.Host {
		return nil, fmt.Errorf("start membership: the host's certificate %s does not allow the host role", own)
	}
	if d.Detection == "" {
		d.Detection = gossip.Normal
	}
	if _, err := gossip.ParseProfile(string(d.Detection)); err != nil {
		return nil, fmt.Errorf("start membership: %w", err)
	}
	if d.Timing == (verdict.Timing{}) {
		d.Timing = verdict.TimingOf(string(d.Detection))
	}
	if d.CertificateValidity == 0 {
		d.CertificateValidity = CertificateValidity
	}
	if d.CertificateValidity < MinCertificateValidity || d.CertificateValidity > trust.CAValidity {
		return nil, fmt.Errorf("start membership: certificates valid for %s, want %s to %s", d.CertificateValidity, MinCertificateValidity, trust.CAValidity)
	}
	if d.MaxNodes == 0 {
		d.MaxNodes = maxNodes
	}
	if d.MaxNodes < 0 || d.MaxNodes > MaxNodes {
		return nil, fmt.Errorf("start membership: at most %d nodes, want 1 to %d", d.MaxNodes, MaxNodes)
	}
	if d.Dial == nil {
		d.Dial = dialTCP
	}
	if d.Now == nil {
		d.Now = trust.NewClock(d.Faults.Now).Now
	}
	if d.OnEvent == nil {
		d.OnEvent = func(Event) {}
	}
	if d.Serves == nil {
		d.Serves = func() []services.Service { return nil }
	}
	if d.OnServices == nil {
		d.OnServices = func(addr.Incarnation, []services.Service) {}
	}
	if d.Barred == nil {
		d.Barred = func([]string) {}
	}
	if d.Revalidate == nil {
		d.Revalidate = func() {}
	}
	return &d, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return segment.Dialer().DialContext(ctx, "tcp", address)
}

// identity returns this node's identity for the deciding part.
func (c *Config) identity(epoch uint64) (verdict.Identity, error) {
	claims, err := verdict.NewClaims(c.Node.Name, c.Node.Addresses, c.Node.Providers)
	return verdict.Identity{UUID: c.State.Identity().Node, Epoch: epoch, Claims: claims}, err
}

var noIncarnation addr.Incarnation
