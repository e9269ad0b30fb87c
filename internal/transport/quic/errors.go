package quic

import (
	"crypto/tls"
	"errors"
	"os"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// ErrRefused is in the error of a Dial to a provider that accepts no handshakes: it is closing or
// has too many.
var ErrRefused = errors.New("connection refused")

// isEnd reports whether err is the end of a connection.
func isEnd(err error) bool { return endError(err) != nil }

// closeError translates the end of a connection.
func closeError(err error) *transport.CloseError {
	if end := endError(err); end != nil {
		return end
	}
	return &transport.CloseError{Code: transport.CodeOK, Reason: network.Bounded(err.Error())}
}

// endError translates the end of a connection; nil if err is another error.
func endError(err error) *transport.CloseError {
	var (
		own     *transport.CloseError
		app     *quicgo.ApplicationError
		idle    *quicgo.IdleTimeoutError
		slow    *quicgo.HandshakeTimeoutError
		reset   *quicgo.StatelessResetError
		proto   *quicgo.TransportError
		version *quicgo.VersionNegotiationError
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &app):
		return &transport.CloseError{Remote: app.Remote, Code: uint64(app.ErrorCode), Reason: network.Bounded(app.ErrorMessage)}
	case errors.As(err, &idle), errors.As(err, &slow):
		return &transport.CloseError{Timeout: true}
	case errors.As(err, &reset):
		return &transport.CloseError{Reset: true}
	case errors.As(err, &proto):
		return handshakeError(proto)
	case errors.As(err, &version):
		return &transport.CloseError{Code: transport.CodeVersion, Reason: network.Bounded(version.Error())}
	}
	return nil
}

// TLS alerts that a peer sends when it refuses a certificate (RFC 8446 6.2).
const (
	alertUnknownCA    = 48
	firstAlertInQUIC  = quicgo.TransportErrorCode(0x100)
	lastAlertInQUIC   = quicgo.TransportErrorCode(0x1ff)
	refusedByPeerText = "refused by peer: "
)

// handshakeError translates an error of QUIC or of TLS within it. TLS sends the peer only an alert,
// which has a fixed text.
func handshakeError(e *quicgo.TransportError) *transport.CloseError {
	c := &transport.CloseError{Remote: e.Remote, Code: transport.CodeProtocol, Reason: e.ErrorMessage}
	if e.ErrorCode >= firstAlertInQUIC && e.ErrorCode <= lastAlertInQUIC {
		alert := tls.AlertError(e.ErrorCode - firstAlertInQUIC)
		if alert == alertUnknownCA {
			c.Code = transport.CodeWrongCluster
		}
		if e.Remote {
			c.Reason = refusedByPeerText + alert.Error()
		}
	}
	if c.Reason == "" {
		c.Reason = e.Error()
	}
	c.Reason = network.Bounded(c.Reason)
	return c
}

// streamError translates an error of a stream's method; it keeps io.EOF and
// deadlines.
func streamError(err error) error {
	var canceled *quicgo.StreamError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	case errors.As(err, &canceled):
		return transport.ErrStreamCanceled
	case errors.Is(err, quicgo.ErrStreamClosed):
		return transport.ErrClosed
	}
	return closeError(err)
}
