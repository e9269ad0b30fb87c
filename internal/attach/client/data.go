package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A nodeStream carries the messages of a connected endpoint between this process and its node. One
// call at a time writes, and one reads.
type nodeStream interface {
	// tryWrite and tryRead do not wait: status.Again if no byte can be moved. At the end of the
	// node's bytes, of either kind, tryRead returns io.EOF.
	tryWrite(p []byte) (int, error)
	tryRead(p []byte) (int, error)

	// write writes all of p. await returns when tryRead may have bytes or the end to return, or
	// after wake. The end of ctx ends both, as status.Canceled or status.TimedOut.
	write(ctx context.Context, p []byte) (int, error)
	await(ctx context.Context) error
	wake()

	// ending returns the kind of the end that tryRead has found; ask asks the node for it.
	ending(ask func() proto.Ending) proto.Ending

	ready() (shm.Readiness, error)
	// watch starts to call changed at each change of ready, on goroutines started with run, until
	// the returned Closer is closed.
	watch(run func(func()), changed func()) (io.Closer, error)

	closeWrite() error
	interrupt() // permanently: waiting calls return
	close()
}

// overdue is a deadline that has passed.
var overdue = time.Unix(1, 0)

// A dataSocket is a nodeStream to the node's process.
type dataSocket struct{ *net.UnixConn }

func (d dataSocket) tryWrite(p []byte) (int, error)              { return shm.TryWrite(d.UnixConn, p) }
func (d dataSocket) tryRead(p []byte) (int, error)               { return shm.TryRead(d.UnixConn, p) }
func (d dataSocket) wake()                                       { d.SetReadDeadline(overdue) }
func (d dataSocket) ending(ask func() proto.Ending) proto.Ending { return ask() }
func (d dataSocket) ready() (shm.Readiness, error)               { return shm.Ready(d.UnixConn) }
func (d dataSocket) closeWrite() error                           { return d.CloseWrite() }
func (d dataSocket) interrupt()                                  { d.SetDeadline(overdue) }
func (d dataSocket) close()                                      { d.Close() }

func (d dataSocket) write(ctx context.Context, p []byte) (int, error) {
	return bounded(ctx, d.SetWriteDeadline, func() (int, error) { return d.Write(p) })
}

func (d dataSocket) await(ctx context.Context) error {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { d.SetReadDeadline(overdue); close(fired) })
	err := shm.WaitRead(d.UnixConn)
	if !stop() {
		<-fired
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
		d.SetReadDeadline(time.Time{})
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if errors.Is(err, net.ErrClosed) {
		return status.Reset
	}
	return nil // another error recurs at the next read
}

// watch waits on a duplicated descriptor, so that blocked calls are not disturbed.
func (d dataSocket) watch(run func(func()), changed func()) (io.Closer, error) {
	w, err := shm.Watcher(d.UnixConn)
	if err != nil {
		return nil, err
	}
	run(func() { shm.WatchRead(w, changed) })
	run(func() { shm.WatchWrite(w, changed) })
	return w, nil
}

// bounded makes one blocking call on the data socket that the end of ctx interrupts. The caller
// holds the direction's lock, so no other call sets the deadline.
func bounded(ctx context.Context, deadline func(time.Time) error, call func() (int, error)) (int, error) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { deadline(overdue); close(fired) })
	n, err := call()
	if !stop() {
		<-fired
		deadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ended(ctx)
	}
	return n, err
}
