package server

import (
	"context"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/rma"
)

func doPostAtomic(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.PostAtomic(rma.Atomic(*r.in.(*proto.AtomicBody)))
}

func doPutSignal(_ context.Context, _ *serverSession, r *request) (reply, error) {
	m := r.in.(*proto.PutBody)
	return reply{}, r.ep.ep.PutSignal(m.Local, m.Len, m.Put)
}

// doVPutSignal copies the bytes as doVWriteTo does.
func doVPutSignal(ctx context.Context, s *serverSession, r *request) (reply, error) {
	m := r.in.(*proto.VPutBody)
	buf, region, done, err := s.staged(ctx, &proto.VTransfer{Memory: m.Memory, MemOff: m.MemOff, Len: m.Len})
	if err != nil {
		return reply{}, err
	}
	defer done()
	if err := region.ReadAt(buf, m.MemOff); err != nil {
		return reply{}, err
	}
	return reply{}, r.ep.ep.VPutSignal(buf, m.Put)
}
