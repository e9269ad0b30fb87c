package client

import (
	"context"
	"errors"
	"io"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// Send returns when the shared-memory path, the path or the data socket has accepted all of p; the
// peer or the node delivers it.
func (e *endpoint) Send(ctx context.Context, p []byte) (int, error) {
	data, err := e.streaming(p)
	if data == nil {
		return 0, err
	}
	if err := e.lock(ctx, &e.sending); err != nil {
		return 0, err
	}
	defer e.sending.Unlock()
	if e.shutOut.Load() {
		return 0, errShut
	}
	if sp := e.ringOut(); sp != nil {
		n, err := sp.send(ctx, p)
		return n, e.broken(err)
	}
	if onPath := e.pathOut(); onPath != nil {
		n, err := onPath.send(ctx, p)
		return n, e.pathBroken(err)
	}
	n, err := e.push(ctx, data, p)
	e.sent(n)
	return n, err
}

// push writes all of p to the data socket.
func (e *endpoint) push(ctx context.Context, data nodeStream, p []byte) (int, error) {
	sent, err := data.tryWrite(p)
	if err != nil && !errors.Is(err, status.Again) {
		return sent, e.broken(err)
	}
	if sent == len(p) {
		return sent, nil
	}
	n, err := data.write(ctx, p[sent:])
	return sent + n, e.broken(err)
}

// TrySend does not wait for a running Send either.
func (e *endpoint) TrySend(p []byte) (int, error) {
	data, err := e.streaming(p)
	if data == nil {
		return 0, err
	}
	if !e.sending.TryLock() {
		return 0, nil
	}
	defer e.sending.Unlock()
	if e.shutOut.Load() {
		return 0, errShut
	}
	if sp := e.ringOut(); sp != nil {
		n, err := sp.write(p)
		return n, e.broken(err)
	}
	if onPath := e.pathOut(); onPath != nil {
		n, err := onPath.trySend(p)
		if err != nil {
			e.suspect(onPath)
		}
		return n, e.broken(err)
	}
	n, err := data.tryWrite(p)
	e.sent(n)
	if err != nil && !errors.Is(err, status.Again) {
		return n, e.broken(err)
	}
	return n, nil
}

// Recv returns bytes of the shared-memory path, the path or the data socket.
func (e *endpoint) Recv(ctx context.Context, p []byte) (int, error) {
	data, err := e.streaming(p)
	if data == nil {
		return 0, err
	}
	if err := e.lock(ctx, &e.receiving); err != nil {
		return 0, err
	}
	defer e.receiving.Unlock()
	for {
		if e.shutting() {
			return 0, status.Reset
		}
		if onPath := e.pathIsOn(); onPath != nil && ctx.Err() == nil { // ask the socket only once
			if n, err := onPath.recv(ctx, p); n > 0 || err != nil {
				return n, err
			}
		}
		n, sp, err := e.receive(data, p)
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
			return n, e.received(data, err)
		}
		onPath := e.path.Load()
		switch {
		case sp != nil:
			err = sp.awaitData(ctx)
		case e.pathIsOn() != nil:
			if n, err = onPath.recv(ctx, p); n > 0 {
				return n, nil
			}
		case onPath != nil && onPath.over.Load():
			err = e.awaitEnd(ctx, data)
		default:
			err = data.await(ctx)
		}
		if err != nil {
			return 0, err
		}
	}
}

// received maps the error of a receive. The data socket's end has two kinds, and the node knows
// which it is.
func (e *endpoint) received(data nodeStream, err error) error {
	switch {
	case err == nil || canceled(err):
		return err
	case !errors.Is(err, io.EOF):
		return e.broken(err)
	}
	end := data.ending(e.askEnding)
	if end != proto.EndedClosed && end != proto.EndedShut {
		return attach.Lost(e.Cause())
	}
	if p := e.path.Load(); p != nil && p.lost(e.moved.got.Load()) {
		return attach.Lost(errPathEnded.Error())
	}
	if end == proto.EndedShut {
		return attach.ErrPeerShut
	}
	return attach.ErrPeerClosed
}

// askEnding asks the node for the kind of the data socket's end.
func (e *endpoint) askEnding() proto.Ending {
	ctx, cancel := e.c.patient()
	defer cancel()
	var m proto.EndingBody
	if e.ask(ctx, proto.OpEnding, nil, &m) != nil {
		return proto.EndedLost
	}
	return m.Ending
}

// broken maps a failure of the data socket or of the ring: unless this end was closed the
// connection has ended, and the node may know the cause.
func (e *endpoint) broken(err error) error {
	if err == nil || canceled(err) {
		return err
	}
	if cause := e.Cause(); cause != "" {
		return attach.Lost(cause)
	}
	return dataError(err)
}

// TryRecv does not wait for a running Recv either.
func (e *endpoint) TryRecv(p []byte) (int, error) {
	data, err := e.streaming(p)
	if data == nil {
		return 0, err
	}
	if !e.receiving.TryLock() {
		return 0, nil
	}
	defer e.receiving.Unlock()
	n, _, err := e.receive(data, p)
	if errors.Is(err, status.Again) || errors.Is(err, io.EOF) && e.mayComeByPath() {
		return 0, nil
	}
	return n, e.received(data, err)
}

// streaming returns the data socket for a call that moves p; nil if the result is already known.
// Moving no bytes succeeds in every state but closed.
func (e *endpoint) streaming(p []byte) (nodeStream, error) {
	if live := e.live.Load(); live != nil && len(p) > 0 {
		return live.nodeStream, nil
	}
	data, err := e.socket()
	if len(p) == 0 && !errors.Is(err, status.BadFD) {
		return nil, nil
	}
	return data, err
}

// lock takes t for one call, even if ctx is done, as long as the call need not wait.
func (e *endpoint) lock(ctx context.Context, t *Mutex) error {
	if t.TryLock() || t.Lock(ctx.Done(), e.quit) {
		return nil
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return status.Reset
}

// canceled reports whether err is the end of a call's ctx.
func canceled(err error) bool {
	return errors.Is(err, status.Canceled) || errors.Is(err, status.TimedOut)
}
