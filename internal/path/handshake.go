package path

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"
)

// handshakeTime bounds the TLS handshake.
const handshakeTime = 5 * time.Second

// New makes an end of a path of f, which it takes in any case. It returns when both
// ends have proved their keys.
func New(ctx context.Context, f *os.File, o Options) (_ *Conn, err error) {
	s, err := newSocket(f)
	if err != nil {
		return nil, err
	}
	c := &Conn{sock: s, changed: o.Changed, flushing: make(chan struct{}, 1), awaiting: make(chan struct{})}
	c.start.Store(unknown)
	c.reads.set = c.setReadDeadline
	c.flushing <- struct{}{}
	if err := c.handshake(ctx, o); err != nil {
		if errors.Is(err, ErrHalf) {
			c.FinishUnused()
		}
		s.tcp.Close()
		c.work.Wait()
		return nil, fmt.Errorf("path: %w", err)
	}
	c.work.Go(c.awaitStart)
	return c, nil
}

// handshake opens TLS, and then reports to the peer that this end is ready and waits for
// the same: neither begins to use a path that the other one cannot.
func (c *Conn) handshake(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.sock.tcp.SetDeadline(past) })
	c.wait = true
	defer stop()
	if err := c.secure(o); err != nil {
		return errors.Join(err, ctx.Err())
	}
	c.seal(o.Binding[:])
	err := c.flush(ctx)
	if err == nil {
		err = c.awaitReady(o.Binding)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return errors.Join(ErrHalf, err, ctx.Err())
	}
	return nil
}

// ErrHalf is the error of a handshake that has failed when the peer may take it for good.
var ErrHalf = errors.New("the other end has not said that it is ready")

// secure opens TLS.
func (c *Conn) secure(o Options) error {
	switch {
	case o.Plaintext:
		return nil
	case o.Client:
		c.tls = tls.Client(carrier{c}, o.Key.config(o.Peer))
	default:
		c.tls = tls.Server(carrier{c}, o.Key.config(o.Peer))
	}
	return c.tls.HandshakeContext(context.Background())
}

// awaitReady waits for the peer's binding.
func (c *Conn) awaitReady(want Binding) error {
	var got Binding
	for n := 0; n < len(got); {
		k, err := c.readSealed(got[n:])
		if n += k; err != nil {
			return err
		}
	}
	if got != want {
		return errors.New("the other end's path is that of another connection")
	}
	return nil
}
