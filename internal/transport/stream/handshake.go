package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// establish creates a session over a connection, within ctx.
func (p *Provider) establish(ctx context.Context, c net.Conn, dialed bool) (*session, error) {
	raw := &meteredConn{Conn: c, records: p.cfg.Plaintext}
	conn := tls.Server(raw, p.cfg.tls().ServerConfig())
	if dialed {
		cfg, err := p.cfg.tls().ClientConfig()
		if err != nil {
			return nil, err
		}
		conn = tls.Client(raw, cfg)
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, explain(err)
	}
	id, peer, err := p.greet(conn)
	if err != nil {
		return nil, err
	}
	var inner net.Conn = conn
	if p.cfg.Plaintext {
		raw.records = false
		inner = raw
	}
	s, err := newSession(ctx, p, raw, inner, dialed, peer.streams)
	if err != nil {
		return nil, explain(err)
	}
	s.id = id
	return s, nil
}

// greet exchanges hellos on a connection whose TLS handshake is complete. A client's is complete
// before the server has verified its certificate: only the server's hello shows that it accepts the
// client.
func (p *Provider) greet(conn *tls.Conn) (id transport.Identity, peer hello, err error) {
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != ALPN {
		return id, peer, &transport.CloseError{Code: transport.CodeVersion, Reason: "the other end does not speak " + ALPN}
	}
	if id, err = p.cfg.Identify(state); err != nil {
		return id, peer, refuse(conn, refusal(err))
	}
	own := hello{from: version, to: version, plaintext: p.cfg.Plaintext, streams: uint32(p.cfg.MaxStreams)}
	if _, err = conn.Write(own.appendTo(nil)); err != nil {
		return id, peer, explain(err)
	}
	kind, body, err := readFrame(conn, make([]byte, maxBody))
	switch {
	case err != nil:
		return id, peer, explain(err)
	case kind == typeClose:
		return id, peer, parseClose(body)
	case kind != typeHello:
		return id, peer, refuse(conn, violation("malformed frame: type %d instead of HELLO", kind))
	}
	if peer, err = parseHello(body); err != nil {
		return id, peer, refuse(conn, violation("%v", err))
	}
	if version < peer.from || peer.to < version {
		return id, peer, refuse(conn, &transport.CloseError{Code: transport.CodeVersion,
			Reason: fmt.Sprintf("peer speaks versions %d to %d, not %d", peer.from, peer.to, version)})
	}
	if peer.plaintext != p.cfg.Plaintext {
		return id, peer, refuse(conn, p.disagree(conn))
	}
	return id, peer, nil
}

// disagree refuses a peer if only one end allows plaintext: neither end gets a session without the
// mode that it was configured for.
func (p *Provider) disagree(conn *tls.Conn) *transport.CloseError {
	with, without := conn.LocalAddr(), conn.RemoteAddr()
	if !p.cfg.Plaintext {
		with, without = without, with
	}
	return &transport.CloseError{Code: transport.CodeVersion,
		Reason: network.Bounded(fmt.Sprintf("plaintext is set at %v and not at %v: both ends must have the same setting", with, without))}
}

// refuse sends the peer why and returns it. It gives the peer a moment to read: a close with bytes
// unread resets the connection.
func refuse(conn *tls.Conn, why *transport.CloseError) error {
	if _, err := conn.Write(appendClose(nil, why)); err == nil {
		// The peer's remaining bytes do not matter.
		_ = conn.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.Copy(io.Discard, conn)
	}
	return why
}
