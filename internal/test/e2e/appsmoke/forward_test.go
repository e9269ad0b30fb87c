package appsmoke

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

const (
	dialLimit   = 10 * time.Second
	lingerLimit = 2 * time.Second // for an application to end its half as well
	firstPause  = 10 * time.Millisecond
	longPause   = 320 * time.Millisecond
	copyBuffer  = 64 << 10
)

// A service is one TCP server that is reached across the fabric.
type service struct {
	name string
	port fabric.Port
	tcp  string // where the forwarder listens, or what it dials
	meter
}

// A forwarder carries the TCP connections of services over a fabricd. It attaches
// again after its fabricd was restarted.
type forwarder struct {
	attach   func(context.Context) (*fabric.Node, error)
	services []*service

	mu   sync.Mutex // guards node
	node *fabric.Node
}

// nodeNow returns the node while the forwarder is attached, and else nil.
func (f *forwarder) nodeNow() *fabric.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

func (f *forwarder) setNode(n *fabric.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node = n
}

// stayAttached attaches, runs serve until the node has gone, and attaches again,
// until ctx is done.
func (f *forwarder) stayAttached(ctx context.Context, serve func(context.Context, *fabric.Node) error) {
	pause := firstPause
	for ctx.Err() == nil {
		if err := f.attachOnce(ctx, serve); err == nil {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

func (f *forwarder) attachOnce(ctx context.Context, serve func(context.Context, *fabric.Node) error) error {
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	node, err := f.attach(limited)
	cancel()
	if err != nil {
		return err
	}
	f.setNode(node)
	err = serve(ctx, node)
	f.setNode(nil)
	return errors.Join(err, node.Close())
}

// enter carries connections from TCP into the fabric, to the node to, until ctx is
// done. The listeners are of the services, in their order; enter closes them.
func (f *forwarder) enter(ctx context.Context, to fabric.NodeID, listeners []net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for i, s := range f.services {
		all.Go(func() {
			for {
				c, err := listeners[i].Accept()
				if err != nil {
					return // closed
				}
				all.Go(func() { f.dial(ctx, s, fabric.Addr{Node: to, Port: s.port}, c.(*net.TCPConn)) })
			}
		})
	}
	f.stayAttached(ctx, func(ctx context.Context, node *fabric.Node) error {
		select {
		case <-ctx.Done():
		case <-node.Done():
		}
		return nil
	})
	for _, l := range listeners {
		l.Close()
	}
}

// dial carries c, which it owns, to the server at addr. What cannot be carried is
// reset.
func (f *forwarder) dial(ctx context.Context, s *service, addr fabric.Addr, c *net.TCPConn) {
	node := f.nodeNow()
	if node == nil {
		s.refused(errors.New("no fabricd"))
		reset(c)
		return
	}
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	conn, err := node.DialAddr(limited, addr)
	cancel()
	if err != nil {
		s.refused(err)
		reset(c)
		return
	}
	s.carry(c, conn)
}

// leave carries connections out of the fabric to the services' TCP servers, until
// ctx is done.
func (f *forwarder) leave(ctx context.Context) {
	f.stayAttached(ctx, func(ctx context.Context, node *fabric.Node) error {
		errs := make(chan error, len(f.services))
		var all sync.WaitGroup
		defer all.Wait()
		defer node.Close() // ends the listeners and the connections
		for _, s := range f.services {
			l, err := node.Listen(s.port)
			if err != nil {
				return err
			}
			all.Go(func() { errs <- s.accept(ctx, l, &all) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-node.Done():
			return nil
		case err := <-errs:
			return err
		}
	})
}

// accept carries what l accepts until l fails for good.
func (s *service) accept(ctx context.Context, l *fabric.Listener, all *sync.WaitGroup) error {
	for {
		conn, err := l.AcceptConn(ctx)
		if op, ok := errors.AsType[*fabric.OpError](err); ok && op.Temporary() && ctx.Err() == nil {
			time.Sleep(firstPause) // as net/http does
			continue
		}
		if err != nil {
			return err
		}
		all.Go(func() {
			c, err := net.DialTimeout("tcp", s.tcp, dialLimit)
			if err != nil {
				s.refused(err)
				conn.Close()
				return
			}
			s.carry(c.(*net.TCPConn), conn)
		})
	}
}

// carry copies both ways and closes both. A lost connection of the fabric is a reset
// for the TCP application, and only an orderly end is an end for it. A fabric
// connection has no half-close: an application's end ends both directions.
func (s *service) carry(c *net.TCPConn, conn *fabric.Conn) {
	s.opened()
	var up sync.WaitGroup
	var ended atomic.Bool
	up.Go(func() { s.up(c, conn, &ended) })
	err := s.down(conn, c, &ended)
	s.closed(err)
	if err != nil {
		reset(c)
	} else {
		// An unread byte would make the kernel reset the connection at Close, which
		// can destroy what the application has not read yet: up reads on.
		_ = c.CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(lingerLimit))
	}
	up.Wait()
	c.Close()
	conn.Close()
}

// up copies from the application to the fabric, and closes that at the end. It sets
// ended before, if the application has ended the connection in order.
func (s *service) up(c *net.TCPConn, conn *fabric.Conn, ended *atomic.Bool) {
	p := make([]byte, copyBuffer)
	for {
		n, err := c.Read(p)
		if n > 0 {
			if _, werr := conn.Write(p[:n]); werr != nil {
				_, _ = io.Copy(io.Discard, c) // down finds out why, and ends this
				return
			}
		}
		if err != nil {
			ended.Store(err == io.EOF)
			conn.Close()
			return
		}
	}
}

// down copies from the fabric to the application. It returns nil when either
// application has ended the connection in order. That conn is closed here does not
// say so: the forwarder closes all when its fabricd goes.
func (s *service) down(conn *fabric.Conn, c *net.TCPConn, ended *atomic.Bool) error {
	p := make([]byte, copyBuffer)
	for {
		n, err := conn.Read(p)
		if n > 0 {
			if _, werr := c.Write(p[:n]); werr != nil {
				return fmt.Errorf("to the application: %w", werr)
			}
			s.moved(n)
		}
		switch {
		case err == nil:
		case err == io.EOF, errors.Is(err, net.ErrClosed) && ended.Load():
			return nil
		default:
			return err
		}
	}
}

// reset ends c in such a way that its application gets ECONNRESET.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only for a connection that has ended
	c.Close()
}
