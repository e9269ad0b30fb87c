package server

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// joinTime bounds how long a SHM_PATH waits for the other application to ask for its side: an
// application that does not know shared-memory paths never asks.
const joinTime = 2 * time.Second

// The node makes the memory and the doorbells of a connection's shared-memory path. It passes each
// side its own and takes no further part, except that each side reports whether it can use the
// shared-memory path.

// pairs finds the endpoints with a peer on this node, and their shared-memory paths.
type pairs struct {
	mu   sync.Mutex        // guards ends, and every pairing and half
	ends map[any]*endpoint // by their key of NodeEndpoint.Pair
}

// A pairing is what pairs knows of an endpoint. Guarded by pairs.mu.
type pairing struct {
	key  any   // in ends; nil: the peer is elsewhere, or the endpoint is being closed
	half *half // nil: no shared-memory path was asked for
}

// A half is one side of a shared-memory path, from the request for it to the end of the
// connection. One shared-memory path of the session's account is charged for it.
type half struct {
	of    *endpoint
	peer  *half         // nil until the other side has asked too
	made  chan struct{} // closed when peer and files are set
	alone chan struct{} // closed when it is known, before the other side has asked, that it never will
	left  bool          // alone is closed
	cause error         // the reason, if not the connection's end; written before alone is closed
	side  uint8
	files [3]*os.File // memory, out, in; nil once passed
	held  int64       // descriptors charged for the ones it has or may get
	done  bool        // JOINED was received
	ok    bool        // and the application can use the shared-memory path
	why   string      // the reason if it cannot; else why the memory is not in huge pages
}

// enter makes e, which has just been connected, visible to its peer.
func (p *pairs) enter(e *endpoint) {
	self, _, ok := e.ep.Pair()
	if !ok {
		e.via("the peer is on another node")
		return
	}
	e.via("")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[self], e.pairing.key = e, self
}

// leave removes e, which is being closed, and drops its half of a shared-memory path.
func (p *pairs) leave(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.pairing.key != nil {
		delete(p.ends, e.pairing.key)
		e.pairing.key = nil
	}
	p.drop(e)
	if _, peer, _ := e.ep.Pair(); p.ends[peer] != nil {
		p.ends[peer].pairing.half.leave(nil)
	}
}

// leave ends the wait for the other side, which will not ask any more. cause is the reason, if it
// is not the end of the connection. The caller holds mu.
func (h *half) leave(cause error) {
	if h == nil || h.peer != nil || h.left {
		return
	}
	h.left, h.cause = true, cause
	close(h.alone)
}

// drop removes e's half of a shared-memory path. The caller holds mu.
func (p *pairs) drop(e *endpoint) {
	h := e.pairing.half
	if h == nil {
		return
	}
	e.pairing.half = nil
	h.leave(nil)
	for i := range h.files {
		h.close(i)
	}
	e.s.account.refund(heldFiles, h.held)
	e.s.account.refund(shmPaths, 1)
}

// asked reports whether e's application has a shared-memory path, or has asked for one.
func (p *pairs) asked(e *endpoint) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return e.pairing.half != nil
}

func (h *half) close(i int) {
	if h.files[i] != nil {
		h.files[i].Close()
		h.files[i] = nil
	}
}

// ask creates e's half of a shared-memory path, and completes it if the other side has created its
// own. Otherwise it returns the endpoint to be notified as other.
func (p *pairs) ask(e *endpoint, params ring.Params) (h *half, other *endpoint, err error) {
	_, peer, ok := e.ep.Pair()
	if !ok {
		return nil, nil, fmt.Errorf("the peer is on another node: %w", status.NotSupp)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.pairing.key == nil { // leave has run, and does not run again
		return nil, nil, fmt.Errorf("the endpoint is being closed: %w", status.Reset)
	}
	// An end from here on finds this half; an earlier one is seen here.
	if e.ep.Ready()&attach.PollHup != 0 {
		return nil, nil, fmt.Errorf("the connection has ended: %w", status.Reset)
	}
	other = p.ends[peer]
	if other == nil {
		return nil, nil, fmt.Errorf("the peer is not attached, or gone: %w", status.NotSupp)
	}
	if e.pairing.half != nil {
		return nil, nil, fmt.Errorf("the connection has a shared-memory path, or waits for one: %w", status.InUse)
	}
	h = &half{of: e, made: make(chan struct{}), alone: make(chan struct{})}
	h.held = int64(len(h.files))
	if err := e.s.account.chargeBoth(shmPaths, 1, heldFiles, h.held); err != nil {
		return nil, nil, err
	}
	if o := other.pairing.half; o != nil && o.peer == nil {
		if err := makeShmPath(o, h, params); err != nil {
			e.s.account.refund(heldFiles, h.held)
			e.s.account.refund(shmPaths, 1)
			o.leave(err)
			return nil, nil, err
		}
		other = nil
	}
	e.pairing.half = h
	return h, other, nil
}

// makeShmPath creates the memory and doorbells of both halves.
func makeShmPath(a, b *half, params ring.Params) (err error) {
	defer func() {
		if err != nil {
			for i := range a.files {
				a.close(i)
				b.close(i)
			}
		}
	}()
	if a.files[0], err = shm.Shared("fabricd-shm-path", proto.RingsSize(params)); err != nil {
		return err
	}
	if b.files[0], err = shm.Duplicate(a.files[0]); err != nil {
		return err
	}
	if a.files[proto.DoorbellOut], b.files[proto.DoorbellIn], err = shm.DoorbellPair(); err != nil {
		return err
	}
	if a.files[proto.DoorbellIn], b.files[proto.DoorbellOut], err = shm.DoorbellPair(); err != nil {
		return err
	}
	a.peer, b.peer, b.side = b, a, 1
	close(a.made)
	close(b.made)
	return nil
}

// take returns one of the files of e's half. The caller owns it; it stays charged.
func (p *pairs) take(e *endpoint, i int) *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := e.pairing.half
	if h == nil || h.files[i] == nil {
		return nil
	}
	f := h.files[i]
	h.files[i] = nil
	h.held--
	return f
}

// giveUp withdraws an unanswered request for a shared-memory path; false if the other side has
// answered meanwhile.
func (p *pairs) giveUp(e *endpoint, h *half) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.peer != nil || e.pairing.half != h {
		return h.peer == nil
	}
	p.drop(e)
	return true
}

// doShmPath waits for the other side to ask too, and answers with the memory.
func doShmPath(ctx context.Context, s *session, r *request) (reply, error) {
	if why := s.srv.opt.NoShmPaths; why != "" {
		r.ep.via(why)
		return reply{}, fmt.Errorf("%s: %w", why, status.NotSupp)
	}
	params := s.srv.opt.Rings
	h, other, err := s.srv.paired.ask(r.ep, params)
	if err == nil && other != nil {
		other.offer()
		err = s.srv.paired.await(ctx, r.ep, h)
	}
	if err != nil {
		why := proto.ReasonOf(err)
		r.ep.via(why)
		if status.Of(err) == status.NoMemory {
			s.without(why)
		}
		return reply{}, err
	}
	f := s.srv.paired.take(r.ep, 0)
	if f == nil {
		return reply{}, status.Reset // closed meanwhile
	}
	body := &proto.ShmPathBody{Side: h.side, Slots: uint32(params.Slots), Data: uint32(params.Data)}
	return s.account.answerTaken(body, f), nil
}

// await waits until the other side has asked too.
func (p *pairs) await(ctx context.Context, e *endpoint, h *half) error {
	t := time.NewTimer(joinTime)
	defer t.Stop()
	var err error
	select {
	case <-h.made:
		return nil
	case <-h.alone:
		if err = h.cause; err == nil {
			err = fmt.Errorf("the connection ends: %w", status.Reset)
		}
	case <-t.C:
		err = fmt.Errorf("the other application does not join: %w", status.Again)
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
	}
	if !p.giveUp(e, h) {
		return nil // it has asked, at the last moment
	}
	return err
}

// offer notifies the application that its peer asks for a shared-memory path. It is a hint, dropped
// if the application does not read.
func (e *endpoint) offer() {
	offer := proto.Packet{Header: proto.Header{Op: proto.OpOffer, Endpoint: e.id}}
	e.s.out.Notify(offer, proto.MaxRequests) // an error is the session's end, or the queue's bound
}

// via records why the endpoint's messages go through the node.
func (e *endpoint) via(why string) {
	way := attach.ViaSocket
	if e.s.inProcess {
		way = attach.ViaCall
	}
	e.ep.Via(way, why)
}

// without logs, once, that a connection of the session stays without a shared-memory path although
// one should be possible.
func (s *session) without(why string) {
	if !s.warned.Swap(true) {
		s.log.Warn().Str("op", "shm-path").Str("reason", why).Msg("no shared-memory path: messages go through the node; `fabricd why` shows the next ones")
	}
}

func doDoorbell(_ context.Context, s *session, r *request) (reply, error) {
	which := r.in.(*proto.DoorbellBody).Which
	if which != proto.DoorbellOut && which != proto.DoorbellIn {
		return reply{}, fmt.Errorf("doorbell %d: %w", which, status.Invalid)
	}
	f := s.srv.paired.take(r.ep, int(which))
	if f == nil {
		return reply{}, fmt.Errorf("doorbell %d: there is no shared-memory path, or it was taken: %w", which, status.Invalid)
	}
	return s.account.answerTaken(nil, f), nil
}

// doJoined records whether the application uses its shared-memory path. An application that cannot
// has given up its half, and may ask for another.
func doJoined(_ context.Context, s *session, r *request) (reply, error) {
	m := r.in.(*proto.JoinedBody)
	m.Why = attach.Printable(m.Why)
	if m.OK > 1 {
		return reply{}, fmt.Errorf("joined %d, want 0 or 1: %w", m.OK, status.Invalid)
	}
	if m.OK == 1 && m.Why != "" && !s.warned.Swap(true) {
		s.log.Info().Str("op", "shm-path").Str("reason", m.Why).Msg("shared-memory path is not what was asked for; `fabricd why` shows the next ones")
	}
	if m.OK == 0 {
		s.without(m.Why)
	}
	if r.ep.joinedPath(m.OK == 1, m.Why) {
		return reply{}, nil
	}
	return reply{}, s.srv.paired.join(r.ep, m.OK == 1, m.Why)
}

// doRings returns the settings of shared-memory paths for which SHM_PATH's answer has no room.
func doRings(_ context.Context, s *session, _ *request) (reply, error) {
	opt := &s.srv.opt
	return reply{body: &proto.RingsBody{Release: uint8(opt.Rings.Release), Huge: opt.HugePages}}, nil
}

func (p *pairs) join(e *endpoint, ok bool, why string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := e.pairing.half
	if h == nil || h.peer == nil || h.done && ok {
		return fmt.Errorf("there is no shared-memory path to join: %w", status.Invalid)
	}
	h.done, h.ok, h.why = true, ok, why
	if !ok {
		p.drop(e)
		if first := h.peer; why == proto.OtherGaveUp && first.done && !first.ok {
			why += ": " + first.why
		}
		e.via(why)
		return nil
	}
	if !h.peer.ok {
		return nil
	}
	for _, x := range []*half{h, h.peer} {
		x.of.ep.Via(attach.ViaShmPath, x.why)
	}
	return nil
}
