package client

import (
	"context"
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// errShut is the error of a send after a CloseWrite.
var errShut = fmt.Errorf("this end sends no more: %w", status.Reset)

// CloseWrite ends the sent bytes on the shared-memory path or the path, and then the data socket's
// direction, which the node makes a half-close of the connection.
func (e *endpoint) CloseWrite() error {
	data, err := e.socket()
	if err != nil {
		return err
	}
	if err := e.lock(context.Background(), &e.sending); err != nil {
		return err
	}
	defer e.sending.Unlock()
	if e.shutOut.Load() {
		return nil
	}
	// Poll may have shown the end by the data socket, before the node's notification.
	if streamEvents(data, e.ends.reported.Load(), false)&attach.PollHup != 0 {
		return e.broken(status.Reset)
	}
	if err := e.ask(context.Background(), proto.OpShut, nil, nil); err != nil {
		return err
	}
	e.shutOut.Store(true)
	if sp := e.shmPath.Load(); sp != nil && sp.switched.Load() {
		sp.shutOut()
	}
	if p := e.path.Load(); p != nil {
		if err := e.shutPath(p); err != nil {
			return e.pathBroken(err)
		}
	}
	if err := data.closeWrite(); err != nil {
		return e.broken(err)
	}
	return nil
}

// shutOut ends the sent bytes of the ring, and wakes its reader.
func (sp *shmPath) shutOut() {
	sp.out.Close()
	if sp.out.WakeReader() {
		sp.room.Ring()
	}
}

// shutPath ends this end's direction of the path in order, once.
func (e *endpoint) shutPath(p *messagePath) error {
	ctx, cancel := context.WithCancel(e.open)
	defer cancel()
	return p.finish(ctx)
}

// finish is path.Conn.Finish, unless it has succeeded before. The caller holds sending.
func (p *messagePath) finish(ctx context.Context) error {
	if p.finished {
		return nil
	}
	err := p.conn.Finish(ctx)
	p.finished = err == nil
	return err
}

// readOver reports whether no more bytes come through a ring or a path, so that the end of the data
// socket is the end.
func (e *endpoint) readOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if sp := e.shmPath.Load(); sp != nil && !e.closed {
		if _, ok := sp.in.Switched(); ok && (sp.in.Pending() || !sp.ended()) {
			return false
		}
	}
	return true
}
