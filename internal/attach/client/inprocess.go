package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Node is a node in this process.
type Node interface {
	// InProcess begins a session of an application in this process. app is its end of
	// the session, the caller's. nodesEnd returns the node's end of an endpoint of the
	// session, by its number; nil if there is none. It may be called once the node has
	// accepted the session.
	InProcess() (app attach.Packets, nodesEnd func(id uint32) attach.NodeEndpoint, err error)
}

// AttachTo attaches to a node in this process, as [Dial] does over a socket in the file
// system. The error is status.Again while the node has no ID, and status.NoDevice when it
// has ended.
func AttachTo(ctx context.Context, n Node) (attach.Session, error) {
	conn, nodesEnd, err := n.InProcess()
	if err != nil {
		return nil, err
	}
	c, err := begin(ctx, conn, nodesEnd)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// An inProcess is a nodeStream of an application in its node's process: the node's own end
// of the connection, without a socket and a relay between.
type inProcess struct {
	ep      attach.NodeEndpoint
	changed chan struct{}   // the endpoint may have something new, or wake was called
	open    context.Context // ends when the application closes its endpoint
	stop    func()          // ends the notification of changes
	end     error           // the last one of tryRead; of the call that reads
}

func newInProcess(ep attach.NodeEndpoint, open context.Context) *inProcess {
	d := &inProcess{ep: ep, changed: make(chan struct{}, 1), open: open}
	d.stop = sync.OnceFunc(ep.Notify(d.changed))
	return d
}

func (d *inProcess) tryWrite(p []byte) (int, error) {
	n, err := d.ep.TrySend(p)
	if n == 0 && err == nil {
		err = status.Again
	}
	return n, err
}

// write ends with the endpoint's close, too, which waits for it before it asks the node.
func (d *inProcess) write(ctx context.Context, p []byte) (int, error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.open, cancel)()
	n, err := d.ep.Send(both, p)
	switch {
	case err == nil || !errors.Is(err, context.Cause(both)) || both.Err() == nil:
		return n, err
	case ctx.Err() != nil:
		return n, ended(ctx)
	}
	return n, status.Reset
}

func (d *inProcess) tryRead(p []byte) (int, error) {
	n, err := d.ep.TryRecv(p)
	switch {
	case err == nil && n == 0:
		return 0, status.Again
	case err != nil:
		d.end = err
		return n, io.EOF
	}
	return n, nil
}

func (d *inProcess) ending(func() proto.Ending) proto.Ending {
	switch {
	case errors.Is(d.end, attach.ErrPeerShut):
		return proto.EndedShut
	case errors.Is(d.end, attach.ErrPeerClosed):
		return proto.EndedClosed
	}
	return proto.EndedLost
}

func (d *inProcess) await(ctx context.Context) error {
	select {
	case <-d.changed:
		return nil
	case <-d.open.Done():
		return status.Reset
	case <-ctx.Done():
		return ended(ctx)
	}
}

func (d *inProcess) wake() { wait.Notify(d.changed) }

// ready returns the endpoint's events as the readiness of a data socket.
func (d *inProcess) ready() (shm.Readiness, error) {
	ev := d.ep.Ready()
	hup := ev&(attach.PollHup|attach.PollErr|attach.PollNval) != 0
	return shm.Readiness{
		In:  ev&attach.PollIn != 0 && ev&attach.PollRdHup == 0,
		Out: ev&attach.PollOut != 0,
		Hup: hup, RdHup: hup || ev&attach.PollRdHup != 0,
	}, nil
}

func (d *inProcess) watch(run func(func()), changed func()) (io.Closer, error) {
	c, quit := make(chan struct{}, 1), make(chan struct{})
	stop := d.ep.Notify(c)
	run(func() {
		for {
			select {
			case <-c:
				changed()
			case <-quit:
				return
			}
		}
	})
	return closerFunc(sync.OnceFunc(func() { stop(); close(quit) })), nil
}

type closerFunc func()

func (f closerFunc) Close() error { f(); return nil }

func (d *inProcess) closeWrite() error { return d.ep.CloseWrite() }
func (d *inProcess) interrupt()        {} // open has ended
func (d *inProcess) close()            { d.stop() }

func (e *endpoint) NodesEnd() attach.NodeEndpoint {
	if e.c.nodesEnd == nil {
		return nil
	}
	return e.c.nodesEnd(e.id)
}
