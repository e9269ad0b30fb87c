package engine

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// greet returns a Hello of this node and behind it the Lease that proves it.
func (s Self) greet(h wire.Hello) ([]byte, error) {
	var lease []byte
	if s.Lease != nil {
		if lease = s.Lease(); len(lease) == 0 {
			return nil, unreachable{fmt.Errorf("%v has no lease to show", s.Incarnation)}
		}
	}
	b := wire.Lease{Length: uint32(len(lease))}.AppendTo(h.AppendTo(nil))
	return append(b, lease...), nil
}

// An opening is the control stream of a peer, read as far as its HELLO.
type opening struct {
	stream  transport.RecvStream
	r       *wire.Reader
	version uint16 // that the answer to a HELLO has chosen
}

// lease reads the signed lease behind h, nil if h is of a version without: such a
// HELLO is refused, and nothing more need come.
func (o *opening) lease(ctx context.Context, h wire.Hello) ([]byte, error) {
	if _, err := core.ChooseVersion(wire.VersionMin, wire.VersionMax, h.VersionMin, h.VersionMax); err != nil {
		return nil, nil
	}
	defer deadlineOnDone(ctx, o.stream.SetReadDeadline)()
	head, body, err := o.r.Next()
	if err != nil {
		return nil, err
	}
	if head.Type != wire.TypeLease {
		return nil, fmt.Errorf("%w: %v behind HELLO instead of Lease", status.Protocol, head.Type)
	}
	f, err := wire.ParseLease(head.Flags, body)
	if err != nil {
		return nil, err
	}
	// The buffer grows with the bytes that arrive, not by the announced length.
	lease, err := io.ReadAll(io.LimitReader(o.r, int64(f.Length)))
	if err == nil && len(lease) < int(f.Length) {
		err = io.ErrUnexpectedEOF
	}
	return lease, err
}

// prove decides whether a peer that the certificate of its session names is the incarnation that
// peer claims: the host has leased it to that key. The error is status.Access.
func (n *Node) prove(lease []byte, peer Peer, proved transport.Identity) error {
	if n.cfg.ProveLease == nil {
		return nil
	}
	err := n.cfg.ProveLease(lease, peer, proved)
	if err == nil || errors.Is(err, status.Access) {
		return err
	}
	return fmt.Errorf("%w: the lease of %v proves nothing: %w", status.Access, peer.Incarnation, err)
}
