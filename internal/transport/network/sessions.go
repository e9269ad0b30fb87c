package network

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/transport"
)

// Closing is the reason sent to the peers of a closing provider.
const Closing = "provider closed"

// Sessions are the sessions of one provider, with the goroutines that serve its peers. All methods
// may be called from any goroutine.
type Sessions struct {
	// Context ends when End is called.
	Context context.Context

	name     string
	stop     context.CancelFunc
	accepted chan transport.Session // passes sessions from handshakes to Accept; unbuffered
	running  sync.WaitGroup
	refusals *logbound.Summary
	panics   *logbound.Summary
	count    func() // called for each refusal

	mu     sync.Mutex // guards the fields below
	closed bool       // no more additions to running or open
	open   map[transport.Session]struct{}
}

// New returns an empty set for the provider called name. The log calls refused peers by what, a
// plural noun, and count is called for each of them.
func New(name, what string, log zerolog.Logger, count func()) *Sessions {
	p := &Sessions{
		name:     name,
		accepted: make(chan transport.Session),
		refusals: logbound.New(log, what+" were refused"),
		panics:   logbound.New(log, "sessions over "+name+" ended with an internal error"),
		count:    count,
		open:     make(map[transport.Session]struct{}),
	}
	p.Context, p.stop = context.WithCancel(context.Background())
	return p
}

// Accept implements transport.Provider.
func (p *Sessions) Accept(ctx context.Context) (transport.Session, error) {
	if p.Context.Err() == nil {
		select {
		case s := <-p.accepted:
			return s, nil
		case <-p.Context.Done():
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: accept: %w", p.name, ctx.Err())
		}
	}
	return nil, fmt.Errorf("%s: accept: %w", p.name, transport.ErrClosed)
}

// Offer waits until Accept has taken s, or s has ended.
func (p *Sessions) Offer(s transport.Session) {
	select {
	case p.accepted <- s:
	case <-s.Done():
	case <-p.Context.Done():
	}
}

// Dial implements transport.Provider. It calls dial with a context that ends after timeout, and
// with the provider.
func (p *Sessions) Dial(ctx context.Context, address string, timeout time.Duration,
	dial func(ctx context.Context, address string) (transport.Session, error)) (transport.Session, error) {
	if !p.Begin() {
		return nil, fmt.Errorf("%s: dial %s: %w", p.name, address, transport.ErrClosed)
	}
	defer p.Done()
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, &transport.CloseError{Timeout: true})
	defer cancel()
	bounded, abort := context.WithCancelCause(bounded)
	defer abort(nil)
	defer context.AfterFunc(p.Context, func() { abort(transport.ErrClosed) })()
	s, err := dial(bounded, address)
	if err == nil {
		return s, nil
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case bounded.Err() != nil:
		err = context.Cause(bounded)
	}
	return nil, fmt.Errorf("%s: dial %s: %w", p.name, address, err)
}

// Begin registers a goroutine, unless End was called. The goroutine ends with Done.
func (p *Sessions) Begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

// Done ends a goroutine registered with Begin.
func (p *Sessions) Done() { p.running.Done() }

// Adopt adds s to the sessions that End closes, and runs each function of work on a goroutine until
// the session is over: s belongs to them until the first function returns. A panic ends s. Adopt
// reports false, and does nothing, if End was called.
func (p *Sessions) Adopt(s transport.Session, work ...func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[s] = struct{}{}
	for i, run := range work {
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			if i == 0 {
				defer p.forget(s)
			}
			defer guard.Recover(func(err error, stack []byte) {
				p.Panicked(s.RemoteAddr(), err, stack)
				s.Close(transport.CodeProtocol, err.Error())
			})
			run()
		}()
	}
	return true
}

func (p *Sessions) forget(s transport.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s)
}

// Refused counts a refusal of peer, and logs it within bounds.
func (p *Sessions) Refused(peer net.Addr, err error) {
	p.count()
	p.refusals.Line(zerolog.WarnLevel, admission.AddressOf(peer)).Str("op", "accept").Stringer("peer", peer).
		Str(zerolog.ErrorFieldName, logbound.Text(err.Error())).Msg("session refused")
}

// Panicked logs, within bounds, a panic while serving a peer, which may be "".
func (p *Sessions) Panicked(peer string, err error, stack []byte) {
	e := p.panics.Line(zerolog.ErrorLevel, netip.Addr{}).Err(err).Bytes("stack", stack)
	if peer != "" {
		e = e.Str("peer", peer)
	}
	e.Msg("BUG: " + p.name + ": what serves a peer has panicked; its session ends")
}

// End ends Context and closes all sessions.
func (p *Sessions) End() {
	p.mu.Lock()
	p.closed = true
	open := slices.Collect(maps.Keys(p.open))
	p.mu.Unlock()
	p.stop()
	for _, s := range open {
		s.Close(transport.CodeOK, Closing)
	}
}

// Wait waits, after End, for all goroutines.
func (p *Sessions) Wait() {
	p.running.Wait()
	p.refusals.Close()
	p.panics.Close()
}
