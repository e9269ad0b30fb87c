package daemon

import (
	"crypto/tls"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/transport/stream"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// openProviders opens the providers of the configuration, in its order, on the
// data port. The engine closes them, and gives up links that are silent for giveUp.
// A provider that cannot be used beside others is warned of, and shown.
func (d *Daemon) openProviders(store *trust.Store, giveUp time.Duration) ([]transport.Provider, error) {
	d.ports.demux = newPortDemux(d.ports.data.streams, d.log, d.countRefused)
	names, _ := d.cfg.linkProviders()
	all, none, err := openEach(names, func(name string) (transport.Provider, error) {
		switch name {
		case "quic":
			return d.openQUIC(store, 2*giveUp)
		case "tcp":
			return d.openTCP(store)
		}
		panic("BUG: daemon: no provider " + name)
	})
	if err != nil {
		return nil, err
	}
	for _, u := range none {
		d.log.Warn().Str("op", "provider").Str("provider", u.Provider).Str("reason", u.Reason).Msg("provider cannot be used; links take the others")
	}
	d.live.set(func(l *parts) {
		l.unavailable = none
		for _, p := range all {
			l.carried = append(l.carried, p.Name())
		}
	})
	return all, nil
}

func (d *Daemon) openQUIC(store *trust.Store, idle time.Duration) (transport.Provider, error) {
	p, err := quic.New(quicConfig(d, store, idle))
	if err != nil {
		return nil, err
	}
	d.ports.data.packets = nil // the provider's now
	return d.links.provider(p, true), nil
}

func (d *Daemon) openTCP(store *trust.Store) (transport.Provider, error) {
	p, err := stream.New(streamConfig(d, d.ports.demux.provider(), store))
	if err != nil {
		d.ports.demux.other = nil
		return nil, err
	}
	return d.links.provider(p, false), nil
}

// providers returns the names of those that the node has: those that it is to
// have, before it has opened them.
func (d *Daemon) providers() (names []string, none []Unavailable) {
	live := d.live.get()
	if live.carried == nil {
		names, _ := d.cfg.linkProviders()
		return names, nil
	}
	return live.carried, live.unavailable
}

// identify returns the node that a verified certificate names.
func identify(cs tls.ConnectionState) (transport.Identity, error) {
	id, err := trust.IdentityOf(cs)
	return transport.Identity{Cluster: id.Cluster, Node: id.Node, Host: id.Host, Key: id.Key, Until: id.NotAfter}, err
}

// peersOf returns which peers the providers of d trust and know.
func (d *Daemon) peersOf(store *trust.Store) network.Config {
	return network.Config{
		ServerTLS: func() *tls.Config { return store.ServerTLS() },
		ClientTLS: func() *tls.Config { return store.ClientTLS(nil) },
		Identify:  identify,
		Known:     d.knows,
		Log:       d.log,
		Refused:   d.countRefused,
	}
}

// streamConfig returns how the TCP provider of d accepts and whom it trusts.
func streamConfig(d *Daemon, shared *handover, store *trust.Store) stream.Config {
	if d.cfg.TCPPlaintext {
		d.log.Warn().Str("op", "provider").Msg("tcp-plaintext is set: links over tcp go without TLS, and only to nodes that have it set too")
	}
	return stream.Config{
		Config:    d.peersOf(store),
		Listener:  shared,
		Plaintext: d.cfg.TCPPlaintext,
		// One link may keep no more than one part of the connections' memory.
		StreamWindow:  min(8<<20, d.memory.window()),
		SessionWindow: d.memory.window(),
	}
}

func (d *Daemon) countRefused() { d.refused.Add(1) }

// quicConfig returns how the QUIC provider of d listens and whom it trusts.
func quicConfig(d *Daemon, store *trust.Store, idle time.Duration) quic.Config {
	c := quic.Config{
		Config:      d.peersOf(store),
		PacketConn:  d.links.packets(quic.ReceiveOffload(d.ports.data.packets), faults.Link),
		IdleTimeout: max(idle, 5*time.Second),
		// As for TCP.
		StreamWindow:     uint64(min(2<<20, d.memory.window()/2)),
		MaxStreamWindow:  uint64(min(8<<20, d.memory.window())),
		ConnectionWindow: uint64(d.memory.window()),
	}
	if key := d.state.Secret(state.SecretResetKey); len(key) == 32 {
		c.StatelessResetKey = (*[32]byte)(key)
	}
	quic.GrowBuffers(d.ports.data.packets)
	if warning := quic.BufferWarning(d.ports.data.packets); warning != "" {
		d.log.Info().Str("op", "provider").Msg(warning)
	}
	return c
}
