package server

import (
	"context"
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// An attached application can send its RMA operations on the windows of a peer on another node
// straight to that node. This file passes the application its end of that path, and the description
// of the windows.

// doRMAPath waits until there is a path, and answers with the application's end of it.
func doRMAPath(ctx context.Context, s *session, r *request) (reply, error) {
	switch {
	case s.srv.opt.NoPaths != "":
		return reply{}, fmt.Errorf("%s: %w", s.srv.opt.NoPaths, status.NotSupp)
	case s.srv.opt.NoDirect: // then the windows are not described either
		return reply{}, errNoDirect
	case r.ep.rmaAsked.Swap(true):
		return reply{}, fmt.Errorf("the connection has asked for its RMA path: %w", status.InUse)
	}
	m, err := s.charged(func(freed func()) (attach.PathSocket, error) {
		return r.ep.ep.RMAPath(ctx, r.in.(*proto.PathKeyBody).Key, freed)
	})
	if err != nil {
		r.ep.rmaAsked.Store(!proto.Passes(err))
		return reply{}, err
	}
	return s.account.answerPath(m), nil
}

// doNoRMAPath releases the path. If it was used, operations may be lost: then the connection ends.
func doNoRMAPath(_ context.Context, _ *session, r *request) (reply, error) {
	m := r.in.(*proto.JoinedBody)
	if m.OK > 1 {
		return reply{}, status.Invalid
	}
	r.ep.ep.NoRMAPath(attach.CleanCause(m.Why), m.OK == 1)
	return reply{}, nil
}

// doFarWindow describes the window at an offset. As in doWindow, the epoch is read before it.
func doFarWindow(_ context.Context, s *session, r *request) (reply, error) {
	if s.srv.opt.NoDirect {
		return reply{}, errNoDirect
	}
	slot, err := r.ep.direct.take(r.ep)
	if err != nil {
		return reply{}, err
	}
	out := &proto.WindowBody{Slot: slot, Epoch: s.epochs.epoch(slot)}
	w, err := r.ep.ep.FarWindow(r.in.(*proto.Offset).Off)
	if err != nil {
		return reply{}, err
	}
	out.Off, out.Len, out.Prot = w.Offset, w.Length, w.Prot
	return reply{body: out}, nil
}
