package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/transport"
)

// A Provider is one TCP listener on which sessions are accepted, and from which
// they are dialed. It implements transport.Provider.
type Provider struct {
	cfg Config

	ctx       context.Context // ends when Close begins
	stop      context.CancelFunc
	accepted  chan *session // handed from handshakes to Accept; unbuffered
	running   sync.WaitGroup
	refusals  *logbound.Summary
	panics    *logbound.Summary
	closeOnce sync.Once
	closeErr  error

	mu       sync.Mutex // guards the fields below
	closed   bool       // nothing is added to running, sessions or opening any more
	sessions map[*session]struct{}
	opening  int                        // incoming handshakes, and sessions that wait for Accept
	slots    *admission.Table[net.Conn] // of the handshakes
}

// New opens the listener and begins to accept sessions.
func New(cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Listener == nil {
		if cfg.Listener, err = net.Listen("tcp", cfg.Address); err != nil {
			return nil, fmt.Errorf("tcp: %w", err)
		}
	}
	p := &Provider{
		cfg:      cfg,
		accepted: make(chan *session),
		sessions: make(map[*session]struct{}),
		slots:    admission.New[net.Conn](limits(cfg.MaxHandshakes)),
		refusals: logbound.New(cfg.Log, "connections to the tcp provider were refused"),
		panics:   logbound.New(cfg.Log, "sessions over tcp ended with an internal error"),
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.running.Add(1)
	go p.acceptLoop()
	return p, nil
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes {
	return transport.Attributes{Encrypted: !p.cfg.Plaintext}
}

// Name returns "tcp".
func (p *Provider) Name() string { return "tcp" }

// Addr returns the listener's address.
func (p *Provider) Addr() string { return p.cfg.Listener.Addr().String() }

// acceptPause is how long the accept loop waits after an error that may pass,
// such as too few descriptors.
const acceptPause = 10 * time.Millisecond

// acceptLoop spawns a goroutine for each connection that gets a place.
func (p *Provider) acceptLoop() {
	defer p.running.Done()
	for {
		c, err := p.cfg.Listener.Accept()
		if err != nil {
			t := time.NewTimer(acceptPause)
			select {
			case <-t.C:
				p.cfg.Log.Warn().Str("op", "accept").Err(err).Msg("tcp: accept")
				continue
			case <-p.ctx.Done():
				t.Stop()
				return
			}
		}
		if !p.admit(c) {
			_ = c.Close()
			p.refused(c, errTooMany)
			continue
		}
		go func() {
			defer p.running.Done()
			defer p.release(c)
			defer guard.Recover(func(err error, stack []byte) {
				p.panicked(c.RemoteAddr().String(), err, stack)
				_ = c.Close()
			})
			if err := p.serve(c); err != nil && p.ctx.Err() == nil {
				p.refused(c, err)
			}
		}()
	}
}

// panicked logs, within bounds, a panic of what serves a peer.
func (p *Provider) panicked(remote string, err error, stack []byte) {
	p.panics.Line(zerolog.ErrorLevel, netip.Addr{}).Str("peer", remote).Err(err).Bytes("stack", stack).Msg("BUG: tcp: what serves a peer has panicked; its session ends")
}

// errTooMany is why a connection is refused while too many others shake hands.
var errTooMany = errors.New("too many handshakes")

// refused counts and logs, within bounds, that there is no session.
func (p *Provider) refused(c net.Conn, err error) {
	if p.ctx.Err() != nil {
		return
	}
	p.cfg.Refused()
	p.refusals.Line(zerolog.WarnLevel, admission.AddressOf(c.RemoteAddr())).Str("op", "accept").Stringer("peer", c.RemoteAddr()).
		Str(zerolog.ErrorFieldName, logbound.Text(err.Error())).Msg("session refused")
}

// limits returns the shares of max handshakes: a stranger that holds connections open
// without a word does not keep out the others.
func limits(max int) admission.Limits {
	share := func(part int) int {
		if part < 1 {
			return 1
		}
		return part
	}
	return admission.Limits{Total: max, Reserved: max / 4, PerAddress: share(max / 4), PerNetwork: share(3 * max / 8), Grace: slotGrace}
}

// slotGrace is how long an honest peer may take for a handshake while others want
// its slot.
const slotGrace = 250 * time.Millisecond

// admit takes a place for an incoming handshake. One that loses its slot to it ends.
func (p *Provider) admit(c net.Conn) bool {
	from := admission.AddressOf(c.RemoteAddr())
	known := p.cfg.Known(from)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.opening >= 2*p.cfg.MaxHandshakes {
		return false
	}
	evicted, ok := p.slots.Enter(c, from, known, time.Now())
	if evicted != nil {
		_ = evicted.Close() // its goroutine ends soon
	}
	if ok {
		p.opening++
		p.running.Add(1)
	}
	return ok
}

// proved gives the slot of c back: it has shown who it is.
func (p *Provider) proved(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Leave(c)
}

// release gives the place of c back.
func (p *Provider) release(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Leave(c)
	p.opening--
}

// Accept implements transport.Provider.
func (p *Provider) Accept(ctx context.Context) (transport.Session, error) {
	if p.ctx.Err() == nil {
		select {
		case s := <-p.accepted:
			return s, nil
		case <-p.ctx.Done():
		case <-ctx.Done():
			return nil, fmt.Errorf("tcp: accept: %w", ctx.Err())
		}
	}
	return nil, fmt.Errorf("tcp: accept: %w", transport.ErrClosed)
}

// Dial implements transport.Provider.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	if !p.begin() {
		return nil, fmt.Errorf("tcp: dial %s: %w", address, transport.ErrClosed)
	}
	defer p.running.Done()
	limit, cancel := context.WithTimeoutCause(ctx, p.cfg.HandshakeTimeout, &transport.CloseError{Timeout: true})
	defer cancel()
	limit, abort := context.WithCancelCause(limit)
	defer abort(nil)
	defer context.AfterFunc(p.ctx, func() { abort(transport.ErrClosed) })()
	s, err := p.dial(limit, address)
	if err == nil {
		return s, nil
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case limit.Err() != nil:
		err = context.Cause(limit)
	}
	return nil, fmt.Errorf("tcp: dial %s: %w", address, err)
}

// dial opens a connection, secures it and greets.
func (p *Provider) dial(ctx context.Context, address string) (*session, error) {
	c, err := p.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	settle := interruptible(ctx, c)
	s, err := p.establish(ctx, c, true)
	if !settle() && err == nil {
		s.hangUp()
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if !p.adopt(s) {
		return nil, transport.ErrClosed
	}
	return s, nil
}

// serve completes one incoming connection, and hands over the session.
func (p *Provider) serve(c net.Conn) error {
	ctx, cancel := context.WithTimeoutCause(p.ctx, p.cfg.HandshakeTimeout, errSlow)
	defer cancel()
	settle := interruptible(ctx, c)
	s, err := p.establish(ctx, c, false)
	if !settle() && (err == nil || ctx.Err() != nil) {
		if err == nil {
			s.hangUp()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
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

var longAgo = time.Unix(1, 0)

// interruptible makes calls on c fail when ctx ends, until settle. That reports
// false if it was too late.
func interruptible(ctx context.Context, c net.Conn) (settle func() bool) {
	// A deadline can only be refused by a connection that has ended.
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(longAgo) })
}

// begin registers a goroutine, unless Close has begun. The goroutine ends with
// running.Done.
func (p *Provider) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

// adopt adds s to the sessions that end with p and starts it. If Close has begun
// it ends s instead.
func (p *Provider) adopt(s *session) bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		s.finish(&transport.CloseError{Code: transport.CodeOK, Reason: closingReason})
		s.run()
		return false
	}
	p.sessions[s] = struct{}{}
	p.running.Add(1)
	p.mu.Unlock()
	go func() {
		defer p.running.Done()
		defer p.forget(s)
		defer guard.Recover(func(err error, stack []byte) {
			s.panicked(err, stack)
			s.hangUp()
		})
		s.run()
	}()
	return true
}

// forget forgets a session that is over.
func (p *Provider) forget(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s)
}

// closingReason is what the peers of a closing provider are told.
const closingReason = "provider closed"

// Close implements transport.Provider.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.closed = true
		open := make([]*session, 0, len(p.sessions))
		for s := range p.sessions {
			open = append(open, s)
		}
		p.mu.Unlock()
		p.stop()
		for _, s := range open {
			s.finish(&transport.CloseError{Code: transport.CodeOK, Reason: closingReason})
		}
		p.closeErr = p.cfg.Listener.Close()
		if errors.Is(p.closeErr, net.ErrClosed) {
			p.closeErr = nil
		}
		p.running.Wait()
		p.refusals.Close()
		p.panics.Close()
	})
	return p.closeErr
}
