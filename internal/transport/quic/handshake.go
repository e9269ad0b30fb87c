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
)

// confirmation is the one byte of the first stream of each side.
const confirmation = 1

// An admission is one place among the incoming handshakes.
type admission struct {
	provider *Provider
	peer     net.Addr
	once     sync.Once
	served   atomic.Bool // Accept has returned the connection
	refusal  sync.Once
	unwatch  func() bool
}

// release gives the place back. It may be called more than once.
func (a *admission) release() {
	a.once.Do(func() { a.provider.pending.Add(-1) })
}

// refused logs once why there is no session, and counts it.
func (a *admission) refused(err error) {
	a.refusal.Do(func() {
		a.provider.cfg.Refused()
		a.provider.cfg.Log.Warn().Str("op", "accept").Stringer("peer", a.peer).Err(err).Msg("session refused")
	})
}

// admissionKey finds the admission in a connection's context.
type admissionKey struct{}

// admit takes a place for an incoming handshake or refuses it. ctx ends with
// the connection, also when the handshake never completes.
func (p *Provider) admit(ctx context.Context, client *quicgo.ClientInfo) (context.Context, error) {
	if p.ctx.Err() != nil {
		return nil, transport.ErrClosed
	}
	if p.pending.Add(1) > int64(p.cfg.MaxHandshakes) {
		p.pending.Add(-1)
		return nil, errors.New("too many handshakes")
	}
	a := &admission{provider: p, peer: client.RemoteAddr}
	// quic-go may give up on a connection before Accept has returned it: nobody
	// else says why then.
	a.unwatch = context.AfterFunc(ctx, func() {
		a.release()
		if p.ctx.Err() == nil && !a.served.Load() {
			a.refused(explain(context.Cause(ctx)))
		}
	})
	return context.WithValue(ctx, admissionKey{}, a), nil
}

// acceptLoop only spawns: quic-go refuses handshakes while 32 wait here.
func (p *Provider) acceptLoop() {
	defer p.running.Done()
	for {
		conn, err := p.listener.Accept(p.ctx)
		if err != nil {
			return // Close has begun
		}
		if !p.begin() {
			conn.CloseWithError(quicgo.ApplicationErrorCode(transport.CodeOK), closingReason)
			continue
		}
		go p.serve(conn)
	}
}

// serve completes one incoming handshake and hands the session to Accept. It
// keeps its place until then, so that sessions that nobody accepts are bounded.
func (p *Provider) serve(conn *quicgo.Conn) {
	defer p.running.Done()
	a := conn.Context().Value(admissionKey{}).(*admission) // admit has put it there
	a.served.Store(true)
	defer func() {
		a.unwatch()
		a.release()
	}()
	defer guard.Recover(func(err error, stack []byte) {
		p.cfg.panicked(conn.RemoteAddr(), err, stack)
		refuse(conn, &transport.CloseError{Code: transport.CodeProtocol, Reason: bounded(err.Error())})
	})
	s, err := p.handshake(conn)
	if err != nil {
		a.refused(err)
		return
	}
	if !p.adopt(s) {
		return
	}
	select {
	case p.accepted <- s:
	case <-s.Done():
	case <-p.ctx.Done():
	}
}

// handshake waits for TLS and for the peer's confirmation.
func (p *Provider) handshake(conn *quicgo.Conn) (*session, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.HandshakeTimeout)
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

// giveUp closes a connection whose handshake was too slow or is not wanted any
// more.
func giveUp(ctx context.Context, conn *quicgo.Conn) error {
	why := &transport.CloseError{Code: transport.CodeOK, Reason: "handshake abandoned"}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = &transport.CloseError{Code: transport.CodeProtocol, Reason: "handshake too slow"}
	}
	return refuse(conn, why)
}

// confirm checks whom the peer's certificate names, tells the peer that it is
// welcome, and waits to hear the same. If it fails the connection is closed.
func (p *Provider) confirm(ctx context.Context, conn *quicgo.Conn) (*session, error) {
	id, err := p.cfg.Identify(conn.ConnectionState().TLS)
	if err != nil {
		var why *transport.CloseError
		if !errors.As(err, &why) {
			why = &transport.CloseError{Code: transport.CodeWrongCluster}
		}
		why = &transport.CloseError{Code: why.Code, Reason: bounded("identity refused: " + err.Error())}
		p.awaitReason(ctx, conn)
		return nil, &causedError{refuse(conn, why), err}
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
		if isEnd(err) { // the streams learn of it before the context does
			return nil, explain(err)
		}
		return nil, refuse(conn, &transport.CloseError{Code: transport.CodeProtocol, Reason: err.Error()})
	}
	return newSession(conn, id, &p.tails), nil
}

// awaitReason waits until the peer is through with the handshake, as its
// confirmation shows: before that, QUIC would tell it of a close without the
// reason (RFC 9000, 10.2.3). What the wait finds does not matter.
func (p *Provider) awaitReason(ctx context.Context, conn *quicgo.Conn) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	_ = receiveConfirmation(ctx, conn)
}

// refuse closes conn for why and returns it.
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

// receiveConfirmation reads the peer's first stream to its end, which gives
// its place among the lanes back.
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
