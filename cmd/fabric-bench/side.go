package main

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/fabricd/fabricd/fabric"
)

// A side is something that can be measured: nodes of ours, or an anchor. It
// has a responder for every connection that is dialed.
type side interface {
	// dial opens the connection of a pair, from 0, to a responder, once that has
	// accepted it. One goroutine dials.
	dial(ctx context.Context, pair int) (*channel, error)
	// about returns what carries the bytes, and what protects them.
	about() (provider, security string)
	// traffic returns the bytes of the packets that the initiator's node has
	// sent and received so far, without the headers of UDP and IP. It fails
	// where nobody counts them.
	traffic(ctx context.Context) (int64, error)
	// processes returns what works for the side beside this process.
	processes() []int
	// close ends the side and waits for its goroutines.
	close() error
}

// A channel is the initiator's end of a connection.
type channel struct {
	io.ReadWriter
	node  *fabric.Node     // nil at an anchor
	ep    *fabric.Endpoint // the same
	close func() error     // ends it in order
	abort func()           // ends it at once, whatever it is doing
}

// An endpointIO is an endpoint as a reader and writer of whole messages.
type endpointIO struct{ ep *fabric.Endpoint }

func (e endpointIO) Read(p []byte) (int, error)  { return e.ep.Recv(context.Background(), p) }
func (e endpointIO) Write(p []byte) (int, error) { return e.ep.Send(context.Background(), p) }

// nodes is a side of ours.
type nodes struct {
	provider, security string

	client *fabric.Node
	others []int // processes
	target fabric.Addr
	end    func() error // of the nodes and their servers
	meter  *linkMeter   // nil: nobody counts
	mesh   *mesh        // of client and target; nil if there is a peer
}

func (n *nodes) about() (provider, security string) { return n.provider, n.security }

func (n *nodes) traffic(ctx context.Context) (int64, error) {
	if n.meter == nil {
		return 0, errNoMeter
	}
	return n.meter.read(ctx)
}

var errNoMeter = errors.New("there is no wire")

func (n *nodes) processes() []int { return n.others }

func (n *nodes) dial(ctx context.Context, _ int) (*channel, error) {
	return dialNode(ctx, n.client, n.target)
}

// dialNode opens a connection from a node to a responder.
func dialNode(ctx context.Context, from *fabric.Node, to fabric.Addr) (*channel, error) {
	conn, err := from.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	ep := conn.Endpoint()
	return &channel{ReadWriter: endpointIO{ep}, node: from, ep: ep, close: conn.Close, abort: func() { conn.Close() }}, nil
}

// isAnchor reports whether a side is what ours is compared with.
func isAnchor(s side) bool {
	provider, _ := s.about()
	return isAnchorName(provider)
}

func (n *nodes) close() error { return n.end() }

// A server accepts connections on a port and runs a responder for each.
type server struct {
	node     *fabric.Node
	listener *fabric.Listener
	running  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	conns map[*fabric.Conn]struct{}
	err   error // the first of a responder
	ended bool

	shared shared // what the responders have in common
}

// serve starts a server on the node; port 0 chooses one.
func serve(node *fabric.Node, port fabric.Port) (*server, error) {
	l, err := node.Listen(port)
	if err != nil {
		return nil, err
	}
	s := &server{node: node, listener: l, conns: make(map[*fabric.Conn]struct{})}
	s.shared.ending = make(chan struct{})
	s.running.Go(s.accept)
	return s, nil
}

func (s *server) addr() fabric.Addr { return s.listener.Addr().(fabric.Addr) }

// accept runs until the listener is closed or the node is gone.
func (s *server) accept() {
	for {
		conn, err := s.listener.AcceptConn(context.Background())
		if err != nil {
			return
		}
		if !s.add(conn) {
			conn.Close()
			return
		}
		s.running.Go(func() {
			r := &responder{rw: endpointIO{conn.Endpoint()}, node: s.node, ep: conn.Endpoint(), shared: &s.shared}
			s.remove(conn, r.run())
		})
	}
}

func (s *server) add(conn *fabric.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.conns[conn] = struct{}{}
	}
	return !s.ended
}

func (s *server) remove(conn *fabric.Conn, err error) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	if s.err == nil && !s.ended {
		s.err = err
	}
}

// close ends the responders. It returns the first error of one.
func (s *server) close() error {
	s.mu.Lock()
	s.ended = true
	close(s.shared.ending)
	for conn := range s.conns {
		conn.Close() // its responder ends and removes it
	}
	s.mu.Unlock()
	s.listener.Close()
	s.running.Wait()
	s.shared.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
