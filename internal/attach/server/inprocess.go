package server

import (
	"context"
	"os"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
)

// A mover is the node's side of a connected endpoint: a relay, or nothing but the
// close where its application uses the node's end itself.
type mover interface {
	// run runs until the endpoint is closed: behind close, or when ctx is done.
	run(ctx context.Context)
	// close ends the endpoint as how says. It is called once.
	close(how finish)
	// ended waits, after the connection has ended, until the application can see that.
	ended(ctx context.Context)
	// halfClose makes the end of the application's bytes a half-close.
	halfClose()
	// peerEnding returns how the peer's bytes ended.
	peerEnding() proto.Ending
	// settled returns a channel that is closed when the endpoint is, and one that has a token when
	// that waits for a peer that does not take the bytes that are for it.
	settled() (done, stuck <-chan struct{})
}

// InProcess begins a session of an application in this process, with the credentials that
// it has. It returns the application's end of the socket, the caller's, and a function that finds the
// node's end of one of its endpoints, nil if there is none. Behind the end of the server
// it is status.NoDevice.
func (s *Server) InProcess() (app attach.Packets, nodesEnd func(id uint32) attach.NodeEndpoint, err error) {
	app, node := proto.Pair()
	own := shm.Cred{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	var session atomic.Pointer[session]
	if !s.run(func() { s.attach(node, own, &session) }) {
		node.Close()
		app.Close()
		return nil, nil, proto.ErrNodeGone
	}
	return app, func(id uint32) attach.NodeEndpoint { return session.Load().nodesEnd(id) }, nil
}

// nodesEnd returns the node's end of an endpoint; nil if there is none.
func (s *session) nodesEnd(id uint32) attach.NodeEndpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints.all[id]; e != nil {
		return e.ep
	}
	return nil
}

// A handedOver is the node's side of a connection whose application, in this
// process, uses the node's end itself: its close.
type handedOver struct {
	ep     attach.NodeEndpoint
	hup    func()        // notifies the application that the connection has ended
	closec chan struct{} // closed by close
	how    finish        // of the endpoint; set before closec is closed
	done   chan struct{} // closed when the endpoint is
}

func newHandedOver(ep attach.NodeEndpoint, hup func()) *handedOver {
	return &handedOver{ep: ep, hup: hup, closec: make(chan struct{}), done: make(chan struct{})}
}

func (p *handedOver) run(ctx context.Context) {
	defer close(p.done)
	hungUp := p.ep.HungUp()
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
func (p *handedOver) halfClose()                             {}                         // the application does it
func (p *handedOver) peerEnding() proto.Ending               { return proto.EndedLost } // nor does it ask
func (p *handedOver) settled() (done, stuck <-chan struct{}) { return p.done, nil }
