package server

import (
	"context"
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// A connection to another node can have a path: a socket between the two applications. The node's
// endpoint makes it; this file passes the application its end on request.

// offerPath arranges a notification of the application when its peer asks for a path.
func (e *endpoint) offerPath() {
	if e.s.srv.opt.NoPaths == "" {
		e.ep.OnPath(e.offer)
	}
}

// doPath waits until the connection has its path, and answers with this end of it.
func doPath(ctx context.Context, s *session, r *request) (reply, error) {
	m, err := s.path(ctx, r)
	if err != nil {
		if status.Of(err) != status.InUse {
			r.ep.via(proto.ReasonOf(err))
		}
		return reply{}, err
	}
	return s.account.answerPath(m), nil
}

// answerPath is the answer with an application's end of a path, which is charged.
func (a *account) answerPath(m attach.PathSocket) reply {
	body := &proto.PathBody{Peer: m.Peer, Binding: m.Binding}
	if m.Client {
		body.Flags |= proto.PathClient
	}
	if m.Plaintext {
		body.Flags |= proto.PathPlaintext
	}
	return a.answerTaken(body, m.File)
}

func (s *session) path(ctx context.Context, r *request) (attach.PathSocket, error) {
	if why := s.srv.opt.NoPaths; why != "" {
		return attach.PathSocket{}, fmt.Errorf("%s: %w", why, status.NotSupp)
	}
	if !r.ep.pathAsk() {
		return attach.PathSocket{}, fmt.Errorf("the connection has asked for its path: %w", status.InUse)
	}
	m, err := s.charged(func(freed func()) (attach.PathSocket, error) {
		return r.ep.ep.Path(ctx, r.in.(*proto.PathKeyBody).Key, func() {
			s.account.refund(pathRests, r.ep.pathRest.Swap(0))
			freed()
		})
	})
	r.ep.pathAnswer(err == nil)
	return m, err
}

// charged asks for a path. The node's duplicate of its socket is charged until the node has closed
// it, and the application's end until it is sent.
func (s *session) charged(ask func(freed func()) (attach.PathSocket, error)) (attach.PathSocket, error) {
	if err := s.account.chargeBoth(pathSockets, 1, heldFiles, 1); err != nil {
		return attach.PathSocket{}, err
	}
	m, err := ask(func() { s.account.refund(pathSockets, 1) })
	if err != nil {
		s.account.refund(heldFiles, 1)
	}
	return m, err
}

// doPathRest takes some of the path's last bytes. They are charged until the node has sent them.
func doPathRest(_ context.Context, s *session, r *request) (reply, error) {
	b := r.in.(*proto.PathRestBody).Bytes
	err := s.account.charge(pathRests, int64(len(b)))
	if err == nil {
		r.ep.pathRest.Add(int64(len(b)))
		err = r.ep.ep.PathRest(b)
	} else {
		_ = r.ep.ep.PathRest(nil) // always an error
	}
	if err != nil {
		s.account.refund(pathRests, r.ep.pathRest.Swap(0))
	}
	return reply{}, err
}

// pathAsk records that the application asks for its path; false if it has asked already.
func (e *endpoint) pathAsk() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := !e.pathAsked
	e.pathAsked = true
	return first
}

// pathAnswer records the result: without a path the application may ask again.
func (e *endpoint) pathAnswer(got bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pathAsked, e.pathGot = got, got
}

// joinedPath records whether the application uses the path that it got. An application that cannot
// use it any more has lost the bytes in flight: the connection ends. It reports false if the
// application has no path.
func (e *endpoint) joinedPath(ok bool, why string) bool {
	e.mu.Lock()
	got, used := e.pathGot, e.pathUsed
	if got {
		e.pathUsed = used || ok
		e.pathAsked, e.pathGot = ok || used, ok || used
	}
	e.mu.Unlock()
	switch {
	case !got:
		return false
	case ok:
		e.ep.Via(attach.ViaPath, why)
	default:
		e.ep.NoPath(why, used)
		e.via(why)
	}
	return true
}
