package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// The providers that --provider names.
const (
	providerQUIC = "quic" // two nodes over UDP sockets of the loopback interface
	providerMem  = "mem"  // two nodes over a network inside the process
	providerLoop = "loop" // two applications on one node
)

// startNodes starts what a provider needs in this process, and a server.
func startNodes(ctx context.Context, provider string) (_ *nodes, err error) {
	n := &nodes{provider: provider, security: "none"}
	var far *fabric.Node
	switch provider {
	case providerQUIC:
		n.security = "tls1.3"
		n.client, far, n.meter, n.end, err = embedded(ctx)
	case providerMem:
		cluster := fabrictest.Start(2)
		n.client, far = cluster.Node(1), cluster.Node(0)
		n.end = func() error { cluster.Close(); return nil }
	case providerLoop:
		cluster := fabrictest.Start(1)
		n.client, far = cluster.App(0, false), cluster.Node(0)
		n.end = func() error { cluster.Close(); return nil }
	default:
		return nil, usagef("there is no provider %q; there are quic, mem, loop", provider)
	}
	if err != nil {
		return nil, err
	}
	if n.server, err = serve(far, 0); err != nil {
		return nil, errors.Join(err, n.end())
	}
	n.target = n.server.addr()
	return n, nil
}

// embedLimit bounds the start of two nodes.
const embedLimit = 20 * time.Second

// embedded starts a cluster of two whole nodes, with membership and gossip, on
// the loopback interface.
func embedded(ctx context.Context) (client, server *fabric.Node, meter *linkMeter, end func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, embedLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "fabric-bench-")
	if err != nil {
		return nil, nil, nil, nil, err
	}
	ends := []func() error{func() error { return os.RemoveAll(dir) }}
	end = func() (err error) {
		for i := len(ends) - 1; i >= 0; i-- {
			err = errors.Join(err, ends[i]())
		}
		return err
	}
	host := embedConfig(dir, "host")
	host.Host = true
	token, err := embed.Init(host)
	if err != nil {
		return nil, nil, nil, nil, errors.Join(err, end())
	}
	near := embedConfig(dir, "node")
	near.AdminSocket = filepath.Join(dir, "admin.sock")
	near.TokenFile = filepath.Join(dir, "join.token")
	if err := os.WriteFile(near.TokenFile, []byte(token), 0o600); err != nil {
		return nil, nil, nil, nil, errors.Join(err, end())
	}
	h, err := embed.Start(ctx, host)
	if err != nil {
		return nil, nil, nil, nil, errors.Join(err, end())
	}
	ends = append(ends, h.Close)
	near.Join = []string{h.DataAddr()}
	c, err := embed.Start(ctx, near)
	if err != nil {
		return nil, nil, nil, nil, errors.Join(err, end())
	}
	ends = append(ends, c.Close)
	if err := errors.Join(sees(ctx, c.Node, 2), sees(ctx, h.Node, 2)); err != nil {
		return nil, nil, nil, nil, errors.Join(err, end())
	}
	return c.Node, h.Node, newLinkMeter(near.AdminSocket, fabric.Host), end, nil
}

func embedConfig(dir, name string) embed.Config {
	return embed.Config{
		Name: name, StateDir: filepath.Join(dir, name), Bind: "127.0.0.1", DataPort: -1, GossipPort: -1,
		Log: zerolog.Nop(),
	}
}

// attachNodes attaches to the fabricd of this machine; the responder is
// `fabric-bench serve` at the peer's address.
// What the link carries, fabricd tells at admin.
func attachNodes(ctx context.Context, socket, admin string, peer fabric.Addr) (*nodes, error) {
	node, err := fabric.Attach(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("%w (is fabricd running here? --socket names its socket)", err)
	}
	return &nodes{provider: providerQUIC, security: "tls1.3", client: node, target: peer, end: node.Close, meter: newLinkMeter(admin, peer.Node)}, nil
}
