package server

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
)

// A mover is the node's part of a connected endpoint: a pump, or only the close if its application
// uses the node's endpoint itself.
type mover interface {
	// run runs until the endpoint is closed: after close, or when ctx is done.
	run(ctx context.Context)
	// close ends the endpoint in the way of how. It is called once.
	close(how finish)
	// ended waits, after the connection has ended, until the application can see that.
	ended(ctx context.Context)
	// shutOut makes the end of the application's bytes a half-close.
	shutOut()
	// heard returns the kind of the end of the peer's bytes.
	heard() proto.Ending
	// settled returns two channels: done is closed when the endpoint is, and stuck has a token when
	// the close waits for a peer that does not read.
	settled() (done, stuck <-chan struct{})
}

// InProcess begins a session of an application in this process, with its credentials. It returns
// the application's end of the socket, which the caller owns, and a function that returns the
// node's endpoint by number, nil if there is none. After the end of the server the error is
// status.NoDevice.
func (s *Server) InProcess() (app *net.UnixConn, nodesEnd func(id uint32) attach.Endpoint, err error) {
	app, node, err := shm.PacketPair()
	if err != nil {
		return nil, nil, err
	}
	var session atomic.Pointer[serverSession]
	if !s.run(func() { s.attach(node, &session) }) {
		node.Close()
		app.Close()
		return nil, nil, proto.ErrNodeGone
	}
	return app, func(id uint32) attach.Endpoint { return session.Load().nodesEnd(id) }, nil
}

// nodesEnd returns the node's endpoint by number; nil if there is none.
func (s *serverSession) nodesEnd(id uint32) attach.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints.all[id]; e != nil {
		return e.ep
	}
	return nil
}

// A handedOver is the node's part of a connection whose application, in this process, uses the
// node's endpoint itself: its close.
type handedOver struct {
	ep     attach.Endpoint
	hup    func()        // notifies the application that the connection has ended
	closec chan struct{} // closed by close
	how    finish        // of the endpoint; set before closec is closed
	done   chan struct{} // closed when the endpoint is
}

func newHandedOver(ep attach.Endpoint, hup func()) *handedOver {
	return &handedOver{ep: ep, hup: hup, closec: make(chan struct{}), done: make(chan struct{})}
}

func (p *handedOver) run(ctx context.Context) {
	defer close(p.done)
	var hungUp <-chan struct{}
	if e, ok := p.ep.(attach.PathEndpoint); ok {
		hungUp = e.HungUp()
	}
	for {
		select {
		case <-hungUp:
			p.hup()
			hungUp = nil
		case <-p.closec:
			p.how.of(p.ep)
			return
		case <-ctx.Done():
			select {
			case <-p.closec:
				p.how.of(p.ep)
			default:
				p.ep.Abort(attach.CauseStopped(p.ep.LocalAddr().Node))
			}
			return
		}
	}
}

func (p *handedOver) close(how finish) {
	p.how = how
	close(p.closec)
}

func (p *handedOver) ended(context.Context)                  { p.hup() }
func (p *handedOver) shutOut()                               {}                         // the application does it
func (p *handedOver) heard() proto.Ending                    { return proto.EndedLost } // the application does not ask
func (p *handedOver) settled() (done, stuck <-chan struct{}) { return p.done, nil }
