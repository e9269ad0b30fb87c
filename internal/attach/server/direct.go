package server

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// staleBacklog bounds the queued packets up to which STALE is sent. It is only a hint: an
// application that does not read must not lose its session because a peer unregisters windows.
const staleBacklog = proto.MaxRequests / 4

// A directAccess is the node's state for an endpoint's direct access to the peer's windows: a slot
// of the session's epochs.
type directAccess struct {
	mu     sync.Mutex // guards the fields below
	closed bool
	open   bool // slot is valid
	slot   uint32
	stop   func() // ends the calls of invalidate
	asked  bool   // windows were passed since STALE was last sent
}

// begin returns the endpoint's slot, which it takes with the first window: an endpoint with a peer
// on another node never has one, and costs nothing.
func (d *directAccess) begin(e *endpoint, roff int64) (uint32, error) {
	d.mu.Lock()
	open := d.open
	d.mu.Unlock()
	if !open {
		w, err := e.ep.PeerWindow(roff)
		if err != nil {
			return 0, err
		}
		defer w.Region.Release()
		if _, err := e.s.sharer(w.Region); err != nil {
			e.ep.FoundWindow(err)
			return 0, err
		}
	}
	return d.take(e)
}

func (d *directAccess) take(e *endpoint) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, status.Reset
	}
	d.asked = true
	if d.open {
		return d.slot, nil
	}
	slot, err := e.s.epochs.take()
	if err != nil {
		return 0, err
	}
	stop, err := e.ep.OnInvalidation(func() { e.invalidate(slot) })
	if err != nil {
		e.s.epochs.give(slot)
		return 0, err
	}
	d.open, d.slot, d.stop = true, slot, stop
	return slot, nil
}

// invalidate invalidates the windows that the application knows. If it knows any, it gets a
// notification, so that it unmaps the memory.
func (e *endpoint) invalidate(slot uint32) {
	e.s.epochs.bump(slot)
	d := &e.direct
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asked || d.closed {
		return
	}
	stale := proto.Packet{Header: proto.Header{Op: proto.OpStale, Endpoint: e.id}}
	d.asked = e.s.out.Notify(stale, staleBacklog) != nil // not sent: the next invalidation sends it
}

// end releases the slot.
func (d *directAccess) end(s *session) {
	d.mu.Lock()
	open, slot, stop := d.open, d.slot, d.stop
	d.open, d.closed = false, true
	d.mu.Unlock()
	if open {
		stop()
		s.epochs.give(slot)
	}
}

// doEpochs passes the session's epochs.
func doEpochs(_ context.Context, s *session, _ *request) (reply, error) {
	if s.srv.opt.NoDirect {
		return reply{}, errNoDirect
	}
	body := &proto.MemAdd{}
	return s.account.answerWith(body, func() (f *os.File, err error) {
		body.Size, f, err = s.epochs.descriptor()
		return f, err
	})
}

var errNoDirect = fmt.Errorf("direct use of windows is switched off: %w", status.NotSupp)

// doWindow describes the peer's window at an offset and passes its memory. The epoch is read before
// the lookup of the window: an invalidation in between makes the answer stale.
func doWindow(_ context.Context, s *session, r *request) (reply, error) {
	if s.srv.opt.NoDirect {
		return reply{}, errNoDirect
	}
	roff := r.in.(*proto.Offset).Off
	slot, err := r.ep.direct.begin(r.ep, roff)
	if err != nil {
		return reply{}, err
	}
	out := &proto.WindowBody{Slot: slot, Epoch: s.epochs.epoch(slot)}
	w, err := r.ep.ep.PeerWindow(roff)
	if err != nil {
		return reply{}, err
	}
	defer w.Region.Release()
	if w.Prot == 0 {
		return reply{}, fmt.Errorf("the window allows nothing: %w", status.Access)
	}
	out.Off, out.Len = w.Offset, w.Length
	return s.window(r.ep.ep, out, w)
}

// window completes the answer about w: with its memory, or without if the node has to copy.
func (s *session) window(ep attach.NodeEndpoint, out *proto.WindowBody, w attach.PeerWindow) (reply, error) {
	m, err := s.sharer(w.Region)
	var r reply
	if err == nil {
		r, err = s.account.answerWith(out, func() (*os.File, error) { return m.grant(s, w.MemOff, w.Length, w.Prot, w.Prot) })
	}
	ep.FoundWindow(err)
	switch {
	case status.Of(err) == status.NotSupp:
		return reply{body: out}, nil
	case err != nil:
		return reply{}, err
	}
	out.Prot, out.MemOff, out.Size = w.Prot, w.MemOff, m.Len()
	return r, nil
}
