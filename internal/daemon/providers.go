package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/transport/tcp"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// openProviders opens the providers of the configuration, in its order, on the
// data port. The engine closes them. silence is how long a silent peer is waited
// for.
func (d *Daemon) openProviders(store *trust.Store, silence time.Duration) (all []transport.Provider, err error) {
	defer func() {
		if err != nil {
			for _, p := range all {
				err = errors.Join(err, p.Close())
			}
		}
	}()
	for _, name := range d.cfg.Providers {
		switch name {
		case "quic":
			p, err := quic.New(quicConfig(d, store, 3*silence))
			if err != nil {
				return all, fmt.Errorf("provider quic: %w", err)
			}
			d.data.packets = nil // the provider's now
			all = append(all, d.links.provider(p, true))
		case "tcp":
			d.shared = newShare(d.data.streams, d.cfg.TCPPlaintext)
			p, err := tcp.New(tcpConfig(d, store, silence))
			if err != nil {
				return all, fmt.Errorf("provider tcp: %w", err)
			}
			all = append(all, d.links.provider(p, false))
		}
	}
	return all, nil
}

// controlListener returns what membership accepts from: the data port's TCP side,
// or what the TCP provider leaves of it.
func (d *Daemon) controlListener() net.Listener {
	if d.shared != nil {
		return d.shared
	}
	return d.data.streams
}

// identify says whom a verified certificate names.
func identify(cs tls.ConnectionState) (transport.Identity, error) {
	id, err := trust.IdentityOf(cs)
	return transport.Identity{Cluster: id.Cluster, Node: id.Node, Host: id.Host}, err
}

// tcpConfig returns how the TCP provider of d accepts and whom it trusts. silence
// is how long a silent peer is waited for.
func tcpConfig(d *Daemon, store *trust.Store, silence time.Duration) tcp.Config {
	if d.cfg.TCPPlaintext {
		d.log.Warn().Str("op", "provider").Msg("tcp-plaintext is set: large transfers go without TLS to nodes that have it set too")
	}
	return tcp.Config{
		Listener:    d.shared.other,
		ServerTLS:   func() *tls.Config { return store.ServerTLS() },
		ClientTLS:   func() *tls.Config { return store.ClientTLS(nil) },
		Identify:    identify,
		Plaintext:   d.cfg.TCPPlaintext,
		UserTimeout: max(3*silence, 5*time.Second),
		Log:         d.log,
	}
}

// quicConfig returns how the QUIC provider of d listens and whom it trusts.
func quicConfig(d *Daemon, store *trust.Store, idle time.Duration) quic.Config {
	c := quic.Config{
		PacketConn:  d.links.packets(d.data.packets, faults.Link),
		ServerTLS:   func() *tls.Config { return store.ServerTLS(quic.ALPN) },
		ClientTLS:   func() *tls.Config { return store.ClientTLS(nil, quic.ALPN) },
		Identify:    identify,
		IdleTimeout: max(idle, 5*time.Second),
		Log:         d.log,
	}
	if key := d.state.Secret(state.SecretResetKey); len(key) == 32 {
		c.StatelessResetKey = (*[32]byte)(key)
	}
	quic.GrowBuffers(d.data.packets)
	if warning := quic.BufferWarning(d.data.packets); warning != "" {
		d.log.Info().Str("op", "provider").Msg(warning)
	}
	return c
}
