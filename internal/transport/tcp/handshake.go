package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// recordBuffer is how much of a first connection is read ahead, in bytes.
const recordBuffer = 32 << 10

// own returns what this end allows its peers.
func (c *Config) own() hello {
	return hello{
		from: version, to: version, plaintext: c.Plaintext, plainFirst: c.Plaintext, bulk: uint8(c.MaxBulk),
		laneWindow: uint32(c.LaneWindow), sessionWindow: uint32(c.SessionWindow), lanes: uint32(c.MaxLanes),
	}
}

// greet exchanges hellos on a connection whose TLS handshake is over. A
// client's is over before the server has looked at its certificate: only the
// server's hello says that the client is welcome. rest is what followed the
// peer's.
func (p *Provider) greet(conn *tls.Conn) (id transport.Identity, peer hello, rest []byte, err error) {
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != ALPN {
		return id, peer, nil, &transport.CloseError{Code: transport.CodeVersion, Reason: "the other end does not speak " + ALPN}
	}
	if id, err = p.cfg.Identify(state); err != nil {
		return id, peer, nil, refuse(conn, refusal(err))
	}
	if _, err = conn.Write(p.cfg.own().appendTo(nil)); err != nil {
		return id, peer, nil, explain(err)
	}
	if peer, rest, err = readHello(conn); err != nil {
		if errors.Is(err, errMalformed) {
			return id, peer, nil, refuse(conn, violation("%v", err))
		}
		return id, peer, nil, explain(err)
	}
	if version < peer.from || peer.to < version {
		return id, peer, nil, refuse(conn, &transport.CloseError{Code: transport.CodeVersion,
			Reason: fmt.Sprintf("peer speaks versions %d to %d, not %d", peer.from, peer.to, version)})
	}
	if peer.plaintext != p.cfg.Plaintext {
		return id, peer, nil, refuse(conn, p.disagree(conn))
	}
	if p.plainFirst(peer) && len(rest) > 0 {
		return id, peer, nil, refuse(conn, violation("%v: bytes behind HELLO in its record", errMalformed))
	}
	return id, peer, rest, nil
}

// plainFirst reports whether the first connection goes without TLS behind the
// hellos: a release before this one sets the flag of bulk connections alone.
func (p *Provider) plainFirst(peer hello) bool { return p.cfg.Plaintext && peer.plainFirst }

// disagree refuses a peer of which only one end allows plaintext. Neither the one
// that wants TLS nor the one that was told to do without gets the other by default.
func (p *Provider) disagree(conn *tls.Conn) *transport.CloseError {
	with, without := conn.LocalAddr(), conn.RemoteAddr()
	if !p.cfg.Plaintext {
		with, without = without, with
	}
	return &transport.CloseError{Code: transport.CodeVersion,
		Reason: bounded(fmt.Sprintf("plaintext is set at %v and not at %v: both ends must have the same setting", with, without))}
}

// refusal returns how a session ends whose peer Identify refuses.
func refusal(err error) *transport.CloseError {
	if end, ok := errors.AsType[*transport.CloseError](err); ok {
		return &transport.CloseError{Code: end.Code, Reason: bounded(end.Reason)}
	}
	return &transport.CloseError{Code: transport.CodeWrongCluster, Reason: bounded(err.Error())}
}

// refuse tells the peer why and returns it. The peer has a moment to read it:
// who closes with bytes unread resets the connection.
func refuse(conn *tls.Conn, why *transport.CloseError) error {
	h := header{kind: typeClose, length: uint32(len(why.Reason)), value: why.Code}
	if _, err := conn.Write(append(h.appendTo(nil), why.Reason...)); err == nil {
		// What the peer still says does not matter.
		_ = conn.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.Copy(io.Discard, conn)
	}
	return why
}

// readHello reads the peer's first frame: a HELLO, or a CLOSE that says why
// there is none.
func readHello(conn *tls.Conn) (hello, []byte, error) {
	buf := make([]byte, headerLen+maxSmall)
	n := 0
	for {
		k, err := conn.Read(buf[n:])
		n += k
		if k == 0 && err != nil {
			return hello{}, nil, err
		}
		if n < headerLen {
			continue
		}
		h, err := parseHeader(buf, maxSmall)
		if err == nil && h.kind != typeHello && h.kind != typeClose {
			err = fmt.Errorf("%w: type %d instead of HELLO", errMalformed, h.kind)
		}
		if err != nil {
			return hello{}, nil, err
		}
		end := headerLen + int(h.length)
		switch {
		case n < end:
		case h.kind == typeClose:
			return hello{}, nil, &transport.CloseError{Remote: true, Code: h.value, Reason: bounded(string(buf[headerLen:end]))}
		default:
			peer, err := parseHello(buf[headerLen:end])
			return peer, buf[end:n], err
		}
	}
}

// secure does the TLS handshake on rec, within ctx: the client's side for alpn,
// the server's side if that is empty.
func (p *Provider) secure(ctx context.Context, rec *recordConn, alpn string) (*recordConn, *tls.Conn, error) {
	var conn *tls.Conn
	if alpn != "" {
		cfg, err := p.cfg.clientTLS(alpn)
		if err != nil {
			return nil, nil, err
		}
		conn = tls.Client(rec, cfg)
	} else {
		conn = tls.Server(rec, p.cfg.serverTLS())
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return rec, conn, nil
}

// serve completes one incoming connection, and hands over the session that it
// may be.
func (p *Provider) serve(c net.Conn) error {
	ctx, cancel := context.WithTimeoutCause(p.ctx, p.cfg.HandshakeTimeout, errSlow)
	defer cancel()
	settle := interruptible(ctx, c)
	s, keep, err := p.receive(ctx, c)
	if !settle() && (err == nil || ctx.Err() != nil) {
		err = context.Cause(ctx)
	}
	if keep != nil && keep(err == nil) {
		return nil
	}
	if err != nil || s == nil {
		_ = c.Close()
		return err
	}
	p.proved(c)
	if !p.adopt(s) {
		return nil
	}
	select {
	case p.accepted <- s:
	case <-s.done:
	case <-p.ctx.Done():
	}
	return nil
}

var errSlow = &transport.CloseError{Code: transport.CodeProtocol, Reason: "handshake too slow"}

// receive finds out what a connection is for: a new session, or one that exists,
// which keep gives it to if the connection is good.
func (p *Provider) receive(ctx context.Context, c net.Conn) (s *session, keep func(bool) bool, err error) {
	rec := newRecordConn(c, recordBuffer)
	if p.cfg.Plaintext {
		if err := rec.fill(); err != nil {
			return nil, nil, err
		}
		if rec.in[0] == PlaintextFirst {
			keep, err := p.bind(c, rec, nil)
			return nil, keep, err
		}
	}
	rec, conn, err := p.secure(ctx, rec, "")
	if err != nil {
		return nil, nil, explain(err)
	}
	if conn.ConnectionState().NegotiatedProtocol == BulkALPN {
		keep, err := p.bind(c, rec, conn)
		return nil, keep, err
	}
	tune(c, p.cfg.UserTimeout, true)
	id, peer, rest, err := p.greet(conn)
	if err != nil {
		return nil, nil, err
	}
	if s, err = newSession(p, rec, conn, id, peer); err != nil {
		return nil, nil, err
	}
	s.end = copy(s.in, rest)
	s.number, err = newNumber()
	return s, nil, err
}

// A plainStream is a connection without TLS, of which some bytes were read
// ahead.
type plainStream struct{ *recordConn }

func (c plainStream) Read(p []byte) (int, error) {
	if c.start == c.end {
		return c.receive(p)
	}
	n := copy(p, c.in[c.start:c.end])
	c.start += n
	return n, nil
}

// bind finds the session that a connection's first bytes name, if they hold a
// token of it. With TLS it must come from the session's peer. keep gives the
// connection to the session, or tells it that there will be none.
func (p *Provider) bind(c net.Conn, rec *recordConn, conn *tls.Conn) (keep func(bool) bool, err error) {
	var stream io.ReadWriter = plainStream{rec}
	if conn != nil {
		stream = conn
	}
	var buf [bindingLen]byte
	if _, err := io.ReadFull(stream, buf[:]); err != nil {
		return nil, explain(err)
	}
	at, err := parseBinding(buf[:])
	if err != nil {
		return nil, err
	}
	s := p.find(at.session)
	if s == nil || s.plaintext != (conn == nil) {
		return nil, errToken
	}
	number := s.redeem(at.token)
	if number == 0 {
		return nil, errToken
	}
	if err := p.welcome(s, stream, rec, conn); err != nil {
		s.giveUp(number)
		return nil, err
	}
	if conn == nil {
		rec = nil
	}
	return func(ok bool) bool {
		if !ok {
			s.giveUp(number)
			return false
		}
		return s.useBulk(newBulk(s, number, c, rec, conn))
	}, nil
}

// welcome answers a token that was taken.
func (p *Provider) welcome(s *session, stream io.Writer, rec *recordConn, conn *tls.Conn) error {
	if conn != nil {
		id, err := p.cfg.Identify(conn.ConnectionState())
		if err != nil || id != s.id {
			return fmt.Errorf("%w: it is of node %v, the session of %v", errToken, id.Node, s.id.Node)
		}
	} else if rec.start != rec.end {
		return fmt.Errorf("%w: bytes before the answer to a token", errMalformed)
	}
	if _, err := stream.Write(header{kind: typeBound}.appendTo(nil)); err != nil {
		return explain(err)
	}
	return nil
}

// errToken refuses a bulk connection.
var errToken = errors.New("no session has given this token, or it was used or has expired")

// newToken returns a token that expires in tokenLife.
func newToken() (t token, err error) {
	_, err = rand.Read(t.secret[:])
	t.expires = time.Now().Add(tokenLife)
	return t, err
}

// newNumber returns the number of a session: it only finds it, the token is what
// is secret.
func newNumber() (uint64, error) {
	var b [8]byte
	_, err := rand.Read(b[:])
	n := uint64(0)
	for _, v := range b {
		n = n<<8 | uint64(v)
	}
	return n, err
}

// bindingLabel is what the key that proves tokens is exported for (RFC 8446 7.5).
const bindingLabel = "EXPORTER-fabricd-tcp-binding"

// bindingKey returns the key that proves the tokens of a session without TLS,
// which only the two ends of the handshake have. Nil with TLS.
func bindingKey(conn *tls.Conn, plain bool) ([]byte, error) {
	if !plain {
		return nil, nil
	}
	state := conn.ConnectionState()
	return state.ExportKeyingMaterial(bindingLabel, nil, tokenLen)
}

// proof returns what a binding says for a token. Whoever listens on the first
// connection sees the token where there is no TLS, and cannot prove it.
func (s *session) proof(secret [tokenLen]byte) [tokenLen]byte {
	if s.key == nil {
		return secret
	}
	mac := hmac.New(sha256.New, s.key)
	mac.Write(secret[:])
	return [tokenLen]byte(mac.Sum(nil))
}

// redeem uses up a token and returns the number of the connection that it is for,
// 0 for a token that was not given, was used or has expired.
func (s *session) redeem(secret [tokenLen]byte) (number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0
	}
	found := -1
	for i, t := range s.bulk.tokens { // all of them: the time tells nothing
		want := s.proof(t.secret)
		if subtle.ConstantTimeCompare(want[:], secret[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return 0
	}
	t := s.bulk.tokens[found]
	s.bulk.tokens = append(s.bulk.tokens[:found], s.bulk.tokens[found+1:]...)
	if !time.Now().Before(t.expires) {
		return 0
	}
	s.bulk.begin(t.number)
	return t.number
}

// giveUp ends the attempt to make a connection and tells the other end.
func (s *session) giveUp(number uint64) {
	s.mu.Lock()
	delete(s.bulk.dialing, number)
	s.mu.Unlock()
	s.sayLost(number, 0)
}

// dialBulk dials a connection and binds it. If that fails the session goes on
// without.
func (s *session) dialBulk(number uint64, at binding) {
	err := s.bindTo(number, at)
	if err != nil && !s.ended() {
		s.giveUp(number)
		s.p.cfg.Log.Warn().Str("op", "bulk").Str("peer", s.remote).Err(err).Msg("no connection for large transfers; they share the first one")
	}
}

func (s *session) bindTo(number uint64, at binding) error {
	at.token = s.proof(at.token)
	ctx, cancel := context.WithTimeout(s.ctx, s.p.cfg.HandshakeTimeout)
	defer cancel()
	c, _, err := s.p.connect(ctx, s.address, s.segment)
	if err != nil {
		return err
	}
	settle := interruptible(ctx, c)
	rec, conn, err := s.present(ctx, c, at)
	if !settle() && err == nil {
		err = ctx.Err()
	}
	if err == nil && s.useBulk(newBulk(s, number, c, rec, conn)) {
		return nil
	}
	_ = c.Close()
	return err
}

// present shows a token on a connection and waits for the answer.
func (s *session) present(ctx context.Context, c net.Conn, at binding) (rec *recordConn, conn *tls.Conn, err error) {
	var dst io.ReadWriter = c
	if !s.plaintext {
		if rec, conn, err = s.p.secure(ctx, newRecordConn(c, bulkBuffer), BulkALPN); err != nil {
			return nil, nil, err
		}
		id, err := s.p.cfg.Identify(conn.ConnectionState())
		if err == nil && id != s.id {
			err = fmt.Errorf("dialed node %v, %v answers", s.id.Node, id.Node)
		}
		if err != nil {
			return nil, nil, err
		}
		dst = conn
	}
	if _, err := dst.Write(at.appendTo(nil)); err != nil {
		return nil, nil, err
	}
	var buf [headerLen]byte
	if _, err := io.ReadFull(dst, buf[:]); err != nil {
		return nil, nil, err
	}
	h, err := parseHeader(buf[:], 0)
	if err == nil && h.kind != typeBound {
		err = fmt.Errorf("%w: type %d instead of BOUND", errMalformed, h.kind)
	}
	return rec, conn, err
}
