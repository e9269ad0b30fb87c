package quic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// confirmation is the one byte of the first stream of each side.
const confirmation = 1

// A halfOpen is an incoming handshake in progress.
type halfOpen struct {
	provider *Provider
	peer     net.Addr
	served   atomic.Bool                 // Accept has returned the connection
	conn     atomic.Pointer[quicgo.Conn] // that connection
	evicted  atomic.Bool                 // it has lost its slot to another handshake
	once     sync.Once                   // release
	refusal  sync.Once
	unwatch  func() bool
}

// retryAbove is the number of handshakes in progress, or a quarter of all if that is less, from
// which peers must first prove their address (RFC 9000, 8.1.2), which costs this end no memory.
const retryAbove = 16

// underAttack reports whether peers must prove their addresses.
func (p *Provider) underAttack(net.Addr) bool {
	places, _ := p.incoming.Taken()
	return places >= max(1, min(retryAbove, p.cfg.MaxHandshakes/4))
}

// end closes a handshake that has lost its slot, if Accept has returned it.
func (h *halfOpen) end() {
	conn, p := h.conn.Load(), h.provider
	if conn == nil || !p.sessions.Begin() {
		return
	}
	go func() { // a close waits for the connection's goroutine
		defer p.sessions.Done()
		refuse(conn, &transport.CloseError{Code: transport.CodeProtocol, Reason: network.ErrTooMany.Error()})
	}()
}

// refused logs once and within bounds why there is no session, and counts it.
func (h *halfOpen) refused(err error) {
	h.refusal.Do(func() { h.provider.sessions.Refused(h.peer, err) })
}

// halfOpenKey finds the halfOpen in a connection's context.
type halfOpenKey struct{}

// admit takes a place for an incoming handshake or refuses it. ctx ends with the connection, even
// if the handshake never completes.
func (p *Provider) admit(ctx context.Context, client *quicgo.ClientInfo) (context.Context, error) {
	if p.sessions.Context.Err() != nil {
		return nil, transport.ErrClosed
	}
	h := &halfOpen{provider: p, peer: client.RemoteAddr}
	evicted, ok := p.incoming.Enter(h, h.peer)
	if !ok {
		p.sessions.Refused(h.peer, network.ErrTooMany)
		return nil, network.ErrTooMany
	}
	if evicted != nil {
		evicted.evicted.Store(true)
		evicted.end()
	}
	// The place is taken until the connection has ended, or is a session that Accept has returned.
	// quic-go may give up a connection before Accept has returned it: only this function logs the
	// reason then.
	h.unwatch = context.AfterFunc(ctx, func() {
		h.release()
		if p.sessions.Context.Err() == nil && !h.served.Load() {
			h.refused(explain(context.Cause(ctx)))
		}
	})
	return context.WithValue(ctx, halfOpenKey{}, h), nil
}

// release releases the place. It may be called more than once.
func (h *halfOpen) release() {
	h.once.Do(func() { h.provider.incoming.Leave(h) })
}

// acceptLoop only starts goroutines: quic-go refuses handshakes while 32 wait here.
func (p *Provider) acceptLoop() {
	defer p.sessions.Done()
	for {
		conn, err := p.listener.Accept(p.sessions.Context)
		if err != nil {
			return // Close has begun
		}
		if !p.sessions.Begin() {
			conn.CloseWithError(quicgo.ApplicationErrorCode(transport.CodeOK), network.Closing)
			continue
		}
		go p.serve(conn)
	}
}

// serve completes one incoming handshake and passes the session to Accept. It keeps its place until
// then, which bounds the sessions not yet accepted.
func (p *Provider) serve(conn *quicgo.Conn) {
	defer p.sessions.Done()
	h := conn.Context().Value(halfOpenKey{}).(*halfOpen) // set by admit
	h.served.Store(true)
	defer func() {
		h.unwatch()
		h.release()
	}()
	if h.conn.Store(conn); h.evicted.Load() {
		h.end()
	}
	defer guard.Recover(func(err error, stack []byte) {
		p.sessions.Panicked(conn.RemoteAddr().String(), err, stack)
		refuse(conn, &transport.CloseError{Code: transport.CodeProtocol, Reason: network.Bounded(err.Error())})
	})
	s, err := p.handshake(conn)
	if err != nil {
		h.refused(err)
		return
	}
	p.incoming.Proved(h)
	if p.adopt(s) {
		p.sessions.Offer(s)
	}
}

// handshake waits for TLS and for the peer's confirmation.
func (p *Provider) handshake(conn *quicgo.Conn) (*session, error) {
	ctx, cancel := context.WithTimeout(p.sessions.Context, p.cfg.HandshakeTimeout)
	defer cancel()
	select {
	case <-conn.HandshakeComplete():
	case <-conn.Context().Done():
		return nil, explain(context.Cause(conn.Context()))
	case <-ctx.Done():
		return nil, giveUp(ctx, conn)
	}
	return p.confirm(ctx, conn)
}

// giveUp closes a connection whose handshake was too slow or was canceled.
func giveUp(ctx context.Context, conn *quicgo.Conn) error {
	why := &transport.CloseError{Code: transport.CodeOK, Reason: "handshake abandoned"}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = &transport.CloseError{Code: transport.CodeProtocol, Reason: "handshake too slow"}
	}
	return refuse(conn, why)
}

// confirm checks the identity in the peer's certificate, sends the confirmation, and waits for the
// peer's. If it fails the connection is closed.
func (p *Provider) confirm(ctx context.Context, conn *quicgo.Conn) (*session, error) {
	id, err := p.cfg.Identify(conn.ConnectionState().TLS)
	if err != nil {
		var why *transport.CloseError
		if !errors.As(err, &why) {
			why = &transport.CloseError{Code: transport.CodeWrongCluster}
		}
		why = &transport.CloseError{Code: why.Code, Reason: network.Bounded("identity refused: " + err.Error())}
		p.awaitReason(ctx, conn)
		return nil, &network.CausedError{CloseError: refuse(conn, why), Cause: err}
	}
	if err := sendConfirmation(conn); err != nil {
		return nil, explain(err)
	}
	if err := receiveConfirmation(ctx, conn); err != nil {
		if ctx.Err() != nil {
			return nil, giveUp(ctx, conn)
		}
		if cause := context.Cause(conn.Context()); cause != nil {
			return nil, explain(cause)
		}
		if isEnd(err) { // the streams report it before the context ends
			return nil, explain(err)
		}
		return nil, refuse(conn, &transport.CloseError{Code: transport.CodeProtocol, Reason: err.Error()})
	}
	return newSession(conn, id, &p.tails), nil
}

// awaitReason waits until the peer has completed the handshake, as its confirmation shows: until
// then, QUIC would send it a close without the reason (RFC 9000, 10.2.3). The result of the wait
// does not matter.
func (p *Provider) awaitReason(ctx context.Context, conn *quicgo.Conn) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	_ = receiveConfirmation(ctx, conn)
}

// refuse closes conn with why and returns it.
func refuse(conn *quicgo.Conn, why *transport.CloseError) *transport.CloseError {
	conn.CloseWithError(quicgo.ApplicationErrorCode(why.Code), why.Reason)
	return why
}

// sendConfirmation opens this side's first stream. It never blocks: every peer
// allows one stream.
func sendConfirmation(conn *quicgo.Conn) error {
	stream, err := conn.OpenUniStream()
	if err != nil {
		return err
	}
	if _, err := stream.Write([]byte{confirmation}); err != nil {
		return err
	}
	return stream.Close()
}

// receiveConfirmation reads the peer's first stream to its end, so that it no longer counts as a
// stream.
func receiveConfirmation(ctx context.Context, conn *quicgo.Conn) error {
	stream, err := conn.AcceptUniStream(ctx)
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		stream.SetReadDeadline(deadline)
	}
	got, err := io.ReadAll(io.LimitReader(stream, 2))
	if err != nil {
		return err
	}
	if len(got) != 1 || got[0] != confirmation {
		return fmt.Errorf("confirmation is % x, want %02x", got, confirmation)
	}
	return nil
}
