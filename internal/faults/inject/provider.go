package inject

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
)

// Provider returns inner with its sessions and streams under the rules. packets
// means that the packets of inner pass a PacketConn of this Layer: rules on Link
// and All are then enforced there, and those on Messages and RMA here. Without,
// as for a provider that has no packets, all are enforced on streams and datagrams.
func (l *Layer) Provider(inner transport.Provider, packets bool) transport.Provider {
	p := &provider{Provider: inner, layer: l, below: packets}
	p.ctx, p.close = context.WithCancelCause(context.Background())
	return p
}

type provider struct {
	transport.Provider
	layer *Layer
	below bool
	ctx   context.Context // ends with Close
	close context.CancelCauseFunc
}

// Close is that of transport.Provider. It ends dials that a rule holds up.
func (p *provider) Close() error {
	p.close(transport.ErrClosed)
	return p.Provider.Close()
}

// dialTimeout bounds a Dial across a cut, as that of a real provider would end.
const dialTimeout = 2 * time.Second

// Dial is that of transport.Provider. Across a cut it hangs, across a half-open
// link it is refused.
func (p *provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	if err := p.approach(ctx, p.layer.peerAt(address, faults.Link)); err != nil {
		return nil, fmt.Errorf("%s: dial %s: %w", p.Name(), address, err)
	}
	s, err := p.Provider.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return p.session(s), nil
}

// approach waits until a session may be opened. Where packets are cut, the provider below waits by
// itself.
func (p *provider) approach(ctx context.Context, w *peer) error {
	if p.below {
		if w.gate(true, true).Refused {
			return syscall.ECONNREFUSED
		}
		return nil
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(p.ctx, func() { end(context.Cause(p.ctx)) })()
	limit, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := p.layer.approach(limit, w)
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		return &transport.CloseError{Timeout: true}
	}
	return err
}

// Accept is that of transport.Provider. Sessions that a rule refuses are closed.
func (p *provider) Accept(ctx context.Context) (transport.Session, error) {
	for {
		inner, err := p.Provider.Accept(ctx)
		if err != nil {
			return nil, err
		}
		s := p.session(inner)
		if g := s.linkGate(false); !g.Refused && !g.Reset {
			return s, nil
		}
		s.peer.gate(true, true)
		s.end(&transport.CloseError{Code: transport.CodeOK, Reason: "refused by a fault"})
		inner.Close(transport.CodeOK, "refused by a fault")
	}
}

// streamError returns the error for the user of a stream: the end of its session, if no other cause is
// known.
func streamError(err error, end func() error) error {
	if !errors.Is(err, errStopped) && !errors.Is(err, errFinished) {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	return transport.ErrClosed
}
