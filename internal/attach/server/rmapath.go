package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// An attached application can send its RMA operations on the windows of a peer on another node
// straight to that node. This file passes the application its end of that path, and the description
// of the windows.

// A heldPath holds the charge of the node's duplicate of a path's socket.
type heldPath struct {
	mu           sync.Mutex // guards the fields below
	asked        bool
	held, closed bool
}

// ask records that the application has asked for its path; false if it had before.
func (h *heldPath) ask() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !h.asked
	h.asked = true
	return first
}

// refused records that there is no path. The application may ask again if the reason is transient.
func (h *heldPath) refused(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = !proto.Passes(why)
}

// keep holds the charge until end; false if end was called.
func (h *heldPath) keep() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = !h.closed
	return h.held
}

// end releases the charge.
func (h *heldPath) end(s *serverSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.held {
		h.held = false
		s.account.refund(pathSockets, 1)
	}
}

// doRMAPath waits until there is a path, and answers with the application's end of it.
func doRMAPath(ctx context.Context, s *serverSession, r *request) (reply, error) {
	ep, ok := r.ep.ep.(attach.RMAPathEndpoint)
	switch {
	case !ok:
		return reply{}, fmt.Errorf("this node's endpoints have no RMA paths: %w", status.NotSupp)
	case s.srv.opt.NoPaths != "":
		return reply{}, fmt.Errorf("%s: %w", s.srv.opt.NoPaths, status.NotSupp)
	case s.srv.opt.NoDirect: // then the windows are not described either
		return reply{}, errNoDirect
	case !r.ep.rma.ask():
		return reply{}, fmt.Errorf("the connection has asked for its RMA path: %w", status.InUse)
	}
	err := s.account.chargePath()
	var m attach.PathSocket
	if err == nil {
		if m, err = ep.RMAPath(ctx, r.in.(*proto.PathKeyBody).Key); err != nil {
			s.account.refund(heldFiles, 1)
			s.account.refund(pathSockets, 1)
		}
	}
	if err != nil {
		r.ep.rma.refused(err)
		return reply{}, err
	}
	if !r.ep.rma.keep() {
		s.account.refund(pathSockets, 1)
	}
	return s.account.answerPath(m), nil
}

// doNoRMAPath releases the path. If it was used, operations may be lost: then the connection ends.
func doNoRMAPath(_ context.Context, _ *serverSession, r *request) (reply, error) {
	m := r.in.(*proto.JoinedBody)
	ep, ok := r.ep.ep.(attach.RMAPathEndpoint)
	if !ok || m.OK > 1 {
		return reply{}, status.Invalid
	}
	ep.NoRMAPath(attach.CleanCause(m.Why), m.OK == 1)
	return reply{}, nil
}

// doFarWindow describes the window at an offset. As in doWindow, the epoch is read before it.
func doFarWindow(_ context.Context, s *serverSession, r *request) (reply, error) {
	ep, ok := r.ep.ep.(attach.RMAPathEndpoint)
	direct, also := r.ep.ep.(attach.DirectEndpoint)
	if !ok || !also || s.srv.opt.NoDirect {
		return reply{}, errNoDirect
	}
	slot, err := r.ep.direct.take(r.ep, direct)
	if err != nil {
		return reply{}, err
	}
	out := &proto.WindowBody{Slot: slot, Epoch: s.epochs.epoch(slot)}
	w, err := ep.FarWindow(r.in.(*proto.Offset).Off)
	if err != nil {
		return reply{}, err
	}
	out.Off, out.Len, out.Prot = w.Offset, w.Length, w.Prot
	return reply{body: out}, nil
}
