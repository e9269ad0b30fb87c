package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// The providers that --provider names.
const (
	providerQUIC      = "quic"       // two nodes over UDP sockets of the loopback interface
	providerTCP       = "tcp"        // the same over TCP lanes with TLS
	providerTCPPlain  = "tcp-plain"  // the same without TLS
	providerTCPLow    = "tcp-low"    // tcp-plain of nodes whose latency is low: their readers look at sockets without sleep
	providerAttach    = "attach"     // two applications of one fabricd, a process of its own
	providerAttachLow = "attach-low" // the same, which wait by polling: FABRIC_LATENCY=low
	providerMem       = "mem"        // two nodes over a network inside the process
	providerLoop      = "loop"       // two applications on one node inside the process

	// Two fabricds, processes of their own, with an application each: what people
	// deploy on two machines. They have no anchor: those are in one process, and
	// what costs here is to wake four.
	providerAttachQUIC = "attach-quic"
	providerAttachTCP  = "attach-tcp"

	// The same fabricds with --enable-faults and no rule: what the layer costs that
	// could break their links.
	providerFaultsQUIC = "attach-quic-faults"
	providerFaultsTCP  = "attach-tcp-faults"
)

// providers are the values of --provider.
var providers = []string{providerQUIC, providerTCP, providerTCPPlain, providerTCPLow, providerAttach, providerAttachLow, providerAttachQUIC, providerAttachTCP,
	providerFaultsQUIC, providerFaultsTCP, providerMem, providerLoop,
	rawProvider, rawTCP, rawTLS, rawUnix}

// anchorOf returns which anchor a provider is measured beside; empty: none.
func anchorOf(provider string) string {
	switch provider {
	case providerQUIC:
		return rawProvider
	case providerTCP:
		return rawTLS
	case providerTCPPlain, providerTCPLow:
		return rawTCP
	case providerAttach, providerAttachLow:
		return rawUnix
	}
	return ""
}

// carry makes the links of a node use a provider, nothing else.
func carry(c *embed.Config, provider string) {
	switch provider {
	case providerQUIC:
		c.Providers = []string{"quic"}
	case providerTCP:
		c.Providers = []string{"tcp"}
	case providerTCPPlain, providerTCPLow:
		c.Providers, c.TCPPlaintext = []string{"tcp"}, true
	}
}

// secured returns what protects the bytes of a provider.
func secured(provider string) string {
	switch provider {
	case providerQUIC, providerTCP, providerAttachQUIC, providerAttachTCP, providerFaultsQUIC, providerFaultsTCP, rawProvider, rawTLS:
		return "tls1.3"
	}
	return "none"
}

// A bed starts sides.
type bed struct {
	fabricd string // the program to run for attach; empty: as findFabricd finds it
	faults  bool   // links can be broken
}

// side starts what a provider needs, and a server.
func (b bed) side(ctx context.Context, provider string) (side, error) {
	switch provider {
	case rawProvider:
		return startRaw(ctx)
	case rawTCP, rawTLS, rawUnix:
		return startSockets(provider)
	}
	m, err := b.mesh(ctx, provider, 2)
	if err != nil {
		return nil, err
	}
	return &nodes{provider: provider, security: m.security, client: m.nodes[1], others: m.others,
		target: m.servers[0].addr(), end: m.close, meter: m.meter, mesh: m}, nil
}

// anchor starts what tests are measured beside. That of memory is no --provider: it
// carries nothing.
func (b bed) anchor(ctx context.Context, provider string) (side, error) {
	if provider == rawMemory {
		return ownMemory{}, nil
	}
	return b.side(ctx, provider)
}

// mesh starts n nodes, or applications of one node, each with a server.
func (b bed) mesh(ctx context.Context, provider string, n int) (m *mesh, err error) {
	switch provider {
	case providerQUIC, providerTCP, providerTCPPlain, providerTCPLow:
		m, err = b.embedded(ctx, provider, n)
	case providerAttach, providerAttachLow, providerAttachQUIC, providerAttachTCP, providerFaultsQUIC, providerFaultsTCP:
		m, err = b.attached(ctx, provider, n)
	case providerMem, providerLoop:
		m = inProcess(provider, n)
	default:
		return nil, usagef("there is no provider %q; there are %s", provider, strings.Join(providers, ", "))
	}
	if err != nil {
		return nil, err
	}
	m.provider, m.security = provider, secured(provider)
	for _, node := range m.nodes {
		s, err := serve(node, 0)
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.servers = append(m.servers, s)
	}
	return m, nil
}

// inProcess starts nodes over a network in memory, or one node.
func inProcess(provider string, n int) *mesh {
	m := &mesh{}
	size := n
	if provider == providerLoop {
		size = 1
	}
	cluster := fabrictest.Start(size)
	m.breaker = &memoryBreaker{cluster: cluster}
	m.ends = []func() error{func() error { cluster.Close(); return nil }}
	for i := range n {
		if i < size {
			m.nodes = append(m.nodes, cluster.Node(i))
		} else {
			m.nodes = append(m.nodes, cluster.App(0, false))
		}
	}
	return m
}

// embedLimit bounds the start of nodes.
const embedLimit = 30 * time.Second

// embedded starts a cluster of whole nodes, with membership and gossip, on the
// loopback interface. The first is the host.
func (b bed) embedded(ctx context.Context, provider string, n int) (_ *mesh, err error) {
	ctx, cancel := context.WithTimeout(ctx, embedLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "fabric-bench-")
	if err != nil {
		return nil, err
	}
	m := &mesh{ends: []func() error{func() error { return os.RemoveAll(dir) }}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if provider == providerTCPLow { // of whose processors readers leave one, as fabricd has one more
		before := runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
		m.ends = append(m.ends, func() error { runtime.GOMAXPROCS(before); return nil })
	}
	host := embedConfig(dir, "host")
	host.Host = true
	sockets := []*http.Client{b.breakable(&host)}
	token, err := embed.Init(host)
	if err != nil {
		return nil, err
	}
	tokenFile := filepath.Join(dir, "join.token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		return nil, err
	}
	first, err := m.embed(ctx, host, provider)
	if err != nil {
		return nil, err
	}
	for i := 1; i < n; i++ {
		c := embedConfig(dir, fmt.Sprintf("node-%d", i))
		c.TokenFile, c.Join = tokenFile, []string{first.DataAddr()}
		sockets = append(sockets, b.breakable(&c))
		if i == 1 {
			c.AdminSocket = adminOf(c)
			m.meter = newLinkMeter(c.AdminSocket, fabric.Host)
		}
		if _, err := m.embed(ctx, c, provider); err != nil {
			return nil, err
		}
	}
	for _, node := range m.nodes {
		if err := sees(ctx, node, n); err != nil {
			return nil, err
		}
	}
	if b.faults {
		m.breaker = &adminBreaker{nodes: sockets}
	}
	return m, nil
}

// breakable lets the links of a node be broken, if they shall be, by what it
// returns.
func (b bed) breakable(c *embed.Config) *http.Client {
	if b.faults {
		c.EnableFaults, c.AdminSocket = true, adminOf(*c)
	}
	return adminClient(adminOf(*c))
}

// adminOf returns where a node of embedConfig has its admin socket, if it has one.
func adminOf(c embed.Config) string { return c.StateDir + ".sock" }

// embed starts a node and adds it to the mesh.
func (m *mesh) embed(ctx context.Context, c embed.Config, provider string) (*embed.Node, error) {
	carry(&c, provider)
	n, err := embed.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	m.nodes = append(m.nodes, n.Node)
	m.ends = append(m.ends, n.Close)
	return n, nil
}

func embedConfig(dir, name string) embed.Config {
	return embed.Config{
		Name: name, StateDir: filepath.Join(dir, name), Bind: "127.0.0.1", DataPort: -1, GossipPort: -1,
		Log: zerolog.Nop(),
	}
}

// latencyVariable makes what attaches poll its rings in a thread of its own.
const latencyVariable = "FABRIC_LATENCY"

// attachedOver is what carries the links between the fabricds of a provider whose
// applications have one each; empty: they share one.
func attachedOver(provider string) string {
	switch provider {
	case providerAttachQUIC, providerFaultsQUIC:
		return providerQUIC
	case providerAttachTCP, providerFaultsTCP:
		return providerTCP
	}
	return ""
}

// attachedFlags returns what the fabricds of a provider are told, and how many there
// are of them for n applications.
func attachedFlags(provider string, n int) (daemons int, flags []string) {
	over := attachedOver(provider)
	if over == "" {
		return 1, nil
	}
	flags = []string{"--providers", over}
	if provider == providerFaultsQUIC || provider == providerFaultsTCP {
		flags = append(flags, "--enable-faults")
	}
	return n, flags
}

// attached starts a fabricd, or one for each, and attaches applications.
func (b bed) attached(ctx context.Context, provider string, n int) (_ *mesh, err error) {
	exe, err := findFabricd(b.fabricd)
	if err != nil {
		return nil, err
	}
	m := &mesh{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if provider == providerAttachLow {
		restore, err := setVariable(latencyVariable, "low")
		if err != nil {
			return nil, err
		}
		m.ends = append(m.ends, restore)
	}
	keeper := newKeeper()
	m.ends = append(m.ends, func() error { keeper.close(); return nil })
	var f *fleet
	daemons, options := attachedFlags(provider, n)
	keeper.do(func() { f, err = newFleet(ctx, exe, daemons, options...) })
	if err != nil {
		return nil, err
	}
	m.ends = append(m.ends, f.close)
	for _, d := range f.daemons {
		m.others = append(m.others, d.cmd.Process.Pid)
	}
	if daemons > 1 {
		m.meter = newLinkMeter(f.daemons[1].admin(), 0)
	}
	for i := range n {
		node, err := f.attach(ctx, f.daemons[i%daemons])
		if err != nil {
			return nil, err
		}
		m.nodes = append(m.nodes, node)
		m.ends = append(m.ends, node.Close)
	}
	return m, nil
}

// setVariable sets a variable of the environment; restore puts back what was.
func setVariable(name, value string) (restore func() error, err error) {
	old, was := os.LookupEnv(name)
	if err := os.Setenv(name, value); err != nil {
		return nil, err
	}
	return func() error {
		if was {
			return os.Setenv(name, old)
		}
		return os.Unsetenv(name)
	}, nil
}

// attachNodes attaches to the fabricd of this machine; the responder is
// `fabric-bench serve` at the peer's address.
// What the link carries, and over what, fabricd tells at admin. A link begins with
// its first connection, so that one is opened here.
func attachNodes(ctx context.Context, socket, admin string, peer fabric.Addr) (*nodes, error) {
	node, err := fabric.Attach(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("%w (is fabricd running here? --socket names its socket)", err)
	}
	n := &nodes{client: node, target: peer, end: node.Close, meter: newLinkMeter(admin, peer.Node)}
	ch, err := n.dial(ctx, 0)
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	n.provider, n.security = n.carried(ctx)
	if err := ch.close(); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return n, nil
}

// A mesh is nodes, each with a server, of which any can dial any.
type mesh struct {
	provider, security string

	nodes   []*fabric.Node
	servers []*server
	others  []int          // processes that work for the nodes
	meter   *linkMeter     // of the link from the second node to the first; nil: nobody counts
	breaker breaker        // nil: nobody can break links
	ends    []func() error // in the order of what was begun
}

// ids returns who the nodes are.
func (m *mesh) ids() (all []fabric.NodeID) {
	for _, n := range m.nodes {
		all = append(all, n.ID())
	}
	return all
}

// close ends the servers and then the nodes, the last first.
func (m *mesh) close() (err error) {
	for _, s := range m.servers {
		err = errors.Join(err, s.close())
	}
	for _, end := range slices.Backward(m.ends) {
		err = errors.Join(err, end())
	}
	return err
}
