package fabric

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/status"
)

// A ListenConfig listens for a program that is to outlive its fabricd. The zero
// ListenConfig attaches to $FABRIC_SOCKET. Its fields must not be changed once it has
// listened.
//
//	var c fabric.ListenConfig
//	defer c.Close()
//	l, err := c.Listen(ctx, 0, fabric.Service("shop"))
//	err = http.Serve(l, mux)
type ListenConfig struct {
	// Attach attaches to a node; nil: [Attach] to $FABRIC_SOCKET. Its context ends with
	// Close, also that of the listener. The ListenConfig closes the Node.
	Attach func(context.Context) (*Node, error)
	// Lost is called when the fabricd has gone away, with the error of Accept, and after
	// each failure to listen again, by the goroutine that accepts; with nil when the
	// listener is back. Nil: no call.
	Lost func(error)

	kept keeper
}

// Listen attaches and listens, as [Node.Listen] does, on a listener that comes back by
// itself: when its fabricd ends, its Accept waits, attaches to the next one, and listens
// there with the same port and options. With port 0 that may be another port: use
// [Service]. Connections that were accepted end with ECONNRESET. A failure other than by
// the fabricd's absence, as the name that another listener has taken, is Accept's error.
// Close stops listening and leaves the connections, as that of [Listener] does.
func (c *ListenConfig) Listen(ctx context.Context, port Port, opts ...ListenOption) (net.Listener, error) {
	l := &lastingListener{c: c, port: port, opts: opts, anew: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := l.listen(ctx); err != nil {
		l.cancel()
		return nil, err
	}
	return l, nil
}

// Close ends the Node, and with it the listeners and the connections that are still open, and
// an attaching. A second Close does nothing.
func (c *ListenConfig) Close() error { return c.kept.close() }

func (c *ListenConfig) report(err error) {
	if c.Lost != nil {
		c.Lost(err)
	}
}

// A lastingListener is a net.Listener that listens again when its fabricd comes back.
type lastingListener struct {
	c      *ListenConfig
	port   Port
	opts   []ListenOption
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	anew   chan struct{} // full while one Accept listens again

	mu  sync.Mutex // guards now
	now listenerOf
}

// A listenerOf is a listener and its Node.
type listenerOf struct {
	*Listener
	node *Node
}

// listen attaches, if need be, and listens.
func (l *lastingListener) listen(ctx context.Context) error {
	node, err := l.c.kept.get(ctx, l.c.Attach)
	if err != nil {
		return err
	}
	now, err := node.listen(ctx, l.port, l.opts)
	switch {
	case err != nil && (ended(node) || status.Of(err) == status.BadFD):
		return &OpError{Op: "listen", Local: node.local(), Err: status.NoDevice} // whatever error an ended node returns
	case err != nil:
		return err
	}
	l.mu.Lock()
	l.now = listenerOf{now, node}
	over := l.ctx.Err() != nil
	l.mu.Unlock()
	if over { // Close has not seen it
		now.Close()
	}
	return nil
}

func (l *lastingListener) current() listenerOf {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *lastingListener) Accept() (net.Conn, error) {
	for {
		now := l.current()
		conn, err := now.Accept()
		switch {
		case err == nil:
			return conn, nil
		case l.ctx.Err() != nil:
			return nil, &OpError{Op: "accept", Local: now.local, Err: status.BadFD}
		case !l.ends(now.node, err):
			return nil, err
		}
		if err := l.again(now, err); err != nil {
			return nil, err
		}
	}
}

// ends reports whether err, of an Accept, is the end of the node. Its endpoints end a
// moment before it has.
func (l *lastingListener) ends(node *Node, err error) bool {
	switch status.Of(err) {
	case status.BadFD, status.Intr, status.Reset, status.NoDevice:
	default:
		return ended(node)
	}
	select {
	case <-node.Done():
		return true
	case <-l.ctx.Done():
		return true // again reports the end
	case <-time.After(endPatience):
		return false
	}
}

// endPatience is how long the end of a node takes at most.
const endPatience = 10 * time.Second

// again listens once more in place of before, which err has ended. Of several goroutines
// that accept one does it.
func (l *lastingListener) again(before listenerOf, err error) error {
	l.anew <- struct{}{}
	defer func() { <-l.anew }()
	if l.current() != before {
		return nil
	}
	l.c.report(err)
	err = again(l.ctx, leastPause, mostPause, func() (error, bool) {
		err := l.listen(l.ctx)
		if l.ctx.Err() == nil {
			l.c.report(err)
		}
		return err, !mayComeBack(err)
	})
	if l.ctx.Err() != nil {
		return &OpError{Op: "accept", Local: before.local, Err: status.BadFD}
	}
	return err
}

// Addr returns the address of the listener.
func (l *lastingListener) Addr() net.Addr { return l.current().Addr() }

// Close stops listening. A second Close fails with net.ErrClosed.
func (l *lastingListener) Close() error {
	l.mu.Lock()
	over, now := l.ctx.Err() != nil, l.now
	l.cancel()
	l.mu.Unlock()
	if over {
		return &OpError{Op: "close", Local: now.local, Err: status.BadFD}
	}
	if err := now.Close(); err != nil && !ended(now.node) {
		return err
	}
	return nil
}
