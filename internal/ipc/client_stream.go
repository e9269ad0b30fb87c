package ipc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// Send returns when the channel or the data socket has taken all of p; the peer
// or the node delivers it.
func (e *clientEndpoint) Send(ctx context.Context, p []byte) (int, error) {
	conn, err := e.streaming(p)
	if conn == nil {
		return 0, err
	}
	if err := e.lock(ctx, &e.sending); err != nil {
		return 0, err
	}
	defer e.sending.Give()
	if e.shutOut.Load() {
		return 0, errShut
	}
	if ch := e.ringOut(); ch != nil {
		n, err := ch.send(ctx, p)
		return n, e.broken(err)
	}
	if way := e.pathOut(); way != nil {
		n, err := way.send(ctx, p)
		return n, e.pathBroken(err)
	}
	n, err := e.push(ctx, conn, p)
	e.sent(n)
	return n, err
}

// push writes all of p to the data socket.
func (e *clientEndpoint) push(ctx context.Context, conn *net.UnixConn, p []byte) (int, error) {
	sent, err := shm.TryWrite(conn, p)
	if err != nil && !errors.Is(err, status.Again) {
		return sent, e.broken(err)
	}
	if sent == len(p) {
		return sent, nil
	}
	n, err := bounded(ctx, conn.SetWriteDeadline, func() (int, error) { return conn.Write(p[sent:]) })
	return sent + n, e.broken(err)
}

// TrySend does not wait for another Send either.
func (e *clientEndpoint) TrySend(p []byte) (int, error) {
	conn, err := e.streaming(p)
	if conn == nil {
		return 0, err
	}
	if !e.sending.Try() {
		return 0, nil
	}
	defer e.sending.Give()
	if e.shutOut.Load() {
		return 0, errShut
	}
	if ch := e.ringOut(); ch != nil {
		n, err := ch.write(p)
		return n, e.broken(err)
	}
	if way := e.pathOut(); way != nil {
		n, err := way.trySend(p)
		if err != nil {
			e.suspect(way)
		}
		return n, e.broken(err)
	}
	n, err := shm.TryWrite(conn, p)
	e.sent(n)
	if err != nil && !errors.Is(err, status.Again) {
		return n, e.broken(err)
	}
	return n, nil
}

// Recv returns what has come through the channel or the data socket.
func (e *clientEndpoint) Recv(ctx context.Context, p []byte) (int, error) {
	conn, err := e.streaming(p)
	if conn == nil {
		return 0, err
	}
	if err := e.lock(ctx, &e.receiving); err != nil {
		return 0, err
	}
	defer e.receiving.Give()
	for {
		if e.shutting() {
			return 0, status.Reset
		}
		if way := e.pathIsOn(); way != nil && ctx.Err() == nil { // the socket is asked once
			if n, err := way.recv(ctx, p); n > 0 || err != nil {
				return n, err
			}
		}
		n, ch, err := e.receive(conn, p)
		if errors.Is(err, io.EOF) {
			more, perr := e.pathToCome(ctx)
			if perr != nil {
				return 0, perr
			}
			if more {
				continue
			}
		}
		if !errors.Is(err, status.Again) {
			return n, e.received(err)
		}
		way := e.path.Load()
		switch {
		case ch != nil:
			err = ch.awaitData(ctx)
		case e.pathIsOn() != nil:
			if n, err = way.recv(ctx, p); n > 0 {
				return n, nil
			}
		case way != nil && way.over.Load():
			err = e.awaitEnd(ctx, conn)
		default:
			err = awaitSocket(ctx, conn)
		}
		if err != nil {
			return 0, err
		}
	}
}

// received gives the error of a receive its meaning. The data socket's end is
// one of two, and the node knows which.
func (e *clientEndpoint) received(err error) error {
	switch {
	case err == nil || withdrawn(err):
		return err
	case !errors.Is(err, io.EOF):
		return e.broken(err)
	}
	ctx, cancel := e.c.patient()
	defer cancel()
	var m endingBody
	if err := e.ask(ctx, opEnding, nil, &m); err != nil || m.Ending != endedClosed && m.Ending != endedShut {
		return Lost(e.Cause())
	}
	if p := e.path.Load(); p != nil && p.lost(e.moved.got.Load()) {
		return Lost(errPathEnded.Error())
	}
	if m.Ending == endedShut {
		return ErrPeerShut
	}
	return ErrPeerClosed
}

// broken gives a failure of the data socket or of the ring its meaning: unless this
// end was closed the connection has ended, and the node may know why.
func (e *clientEndpoint) broken(err error) error {
	if err == nil || withdrawn(err) {
		return err
	}
	if cause := e.Cause(); cause != "" {
		return Lost(cause)
	}
	return dataError(err)
}

// TryRecv does not wait for another Recv either.
func (e *clientEndpoint) TryRecv(p []byte) (int, error) {
	conn, err := e.streaming(p)
	if conn == nil {
		return 0, err
	}
	if !e.receiving.Try() {
		return 0, nil
	}
	defer e.receiving.Give()
	n, _, err := e.receive(conn, p)
	if errors.Is(err, status.Again) || errors.Is(err, io.EOF) && e.mayComeByPath() {
		return 0, nil
	}
	return n, e.received(err)
}

// streaming returns the data socket for a call that moves p; nil when the
// result is decided. No bytes can be moved in any state but closed.
func (e *clientEndpoint) streaming(p []byte) (*net.UnixConn, error) {
	if conn := e.live.Load(); conn != nil && len(p) > 0 {
		return conn, nil
	}
	conn, err := e.socket()
	if len(p) == 0 && !errors.Is(err, status.BadFD) {
		return nil, nil
	}
	return conn, err
}

// lock takes t for one call, also when ctx is done: the call may not have to wait.
func (e *clientEndpoint) lock(ctx context.Context, t *Turn) error {
	if t.Try() || t.Take(ctx.Done(), e.quit) {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
	}
	return status.Reset
}

// withdrawn reports whether err is the end of a call's ctx.
func withdrawn(err error) bool {
	return errors.Is(err, status.Canceled) || errors.Is(err, status.TimedOut)
}

// bounded does one blocking call on the data socket that ctx can end. The
// caller holds the direction's lock, so the deadline is its own.
func bounded(ctx context.Context, deadline func(time.Time) error, call func() (int, error)) (int, error) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { deadline(past); close(fired) })
	n, err := call()
	if !stop() {
		<-fired
		deadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
	}
	return n, err
}
