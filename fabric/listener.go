package fabric

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/fabricd/fabricd/internal/status"
)

// A Listener is a listening endpoint as a [net.Listener].
type Listener struct {
	ep    *Endpoint
	local Addr
}

var _ net.Listener = (*Listener)(nil)

// Accept waits for the next connection; it is a *[Conn]. After Close it fails
// with net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with a context.
func (l *Listener) AcceptConn(ctx context.Context) (*Conn, error) {
	ep, err := l.ep.Accept(ctx)
	if errors.Is(err, syscall.EINTR) { // woken by Close
		err = &OpError{Op: "accept", Local: l.local, Err: status.BadFD}
	}
	if err != nil {
		return nil, err
	}
	return NewConn(ep), nil
}

// Endpoint returns the listening endpoint, for Poll.
func (l *Listener) Endpoint() *Endpoint { return l.ep }

// Addr returns the listener's [Addr], also after Close.
func (l *Listener) Addr() net.Addr { return l.local }

// Close stops listening: requests that wait are refused, connections that were
// accepted live on. A second Close fails with net.ErrClosed.
func (l *Listener) Close() error { return l.ep.Close() }
