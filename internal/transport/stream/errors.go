package stream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// violation returns the end of a session whose peer violated the protocol.
func violation(format string, args ...any) *transport.CloseError {
	return &transport.CloseError{Code: transport.CodeProtocol, Reason: network.Bounded(fmt.Sprintf(format, args...))}
}

// closeError translates the error that ended a connection into the end of its session. A peer that
// ended without a CLOSE is a reset: its kernel reports that the process no longer has the
// connection.
func closeError(err error) *transport.CloseError {
	if own, ok := errors.AsType[*transport.CloseError](err); ok {
		return own
	}
	switch {
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, yamux.ErrConnectionWriteTimeout):
		return &transport.CloseError{Timeout: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &transport.CloseError{Reset: true}
	}
	return tlsError(err)
}

// refusedByPeer is Go's text for a received alert.
const refusedByPeer = "remote error"

// unknownAuthority is the text of the alert unknown_ca (RFC 8446 6.2).
const unknownAuthority = "unknown certificate authority"

// tlsError translates an error of TLS. TLS sends the peer only an alert, which has a fixed text.
func tlsError(err error) *transport.CloseError {
	c := &transport.CloseError{Code: transport.CodeProtocol, Reason: network.Bounded(err.Error())}
	op, isOp := errors.AsType[*net.OpError](err)
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case isOp && op.Op == refusedByPeer:
		c.Remote = true
		c.Reason = network.Bounded("refused by peer: " + op.Err.Error())
		if strings.Contains(op.Err.Error(), unknownAuthority) {
			c.Code = transport.CodeWrongCluster
		}
	case unverified && unknown:
		c.Code = transport.CodeWrongCluster
	}
	return c
}

// explain adds the contract's CloseError to an error of a handshake.
func explain(err error) error {
	if _, ok := errors.AsType[*transport.CloseError](err); ok {
		return err
	}
	return &network.CausedError{CloseError: closeError(err), Cause: err}
}

// refusal returns the end of a session whose peer Identify refuses.
func refusal(err error) *transport.CloseError {
	if end, ok := errors.AsType[*transport.CloseError](err); ok {
		return &transport.CloseError{Code: end.Code, Reason: network.Bounded(end.Reason)}
	}
	return &transport.CloseError{Code: transport.CodeWrongCluster, Reason: network.Bounded(err.Error())}
}
