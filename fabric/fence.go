package fabric

import (
	"context"

	"github.com/fabricd/fabricd/fence"
)

// FenceMark returns a mark behind all transfers of this connection that by has
// begun so far (scif_fence_mark). Marks are not used up: they can be waited for
// any number of times, in any order. With [InitPeer] it asks the peer.
//
// Errors: EINVAL if by is neither InitSelf nor InitPeer; ENOTCONN or
// ECONNRESET; ENOBUFS as for FenceSignal.
func (e *Endpoint) FenceMark(by Side) (Mark, error) {
	m, err := e.ep.FenceMark(fence.Side(by))
	return Mark{Side(m.Side), m.Seq}, e.fail("fence_mark", err)
}

// FenceWait waits until every transfer before the mark has completed: its
// bytes are in the destination's memory (scif_fence_wait). Later transfers may
// have completed too.
//
// Errors: ENOTCONN; ECONNRESET when the connection has ended, for marks taken
// before as well; the error of the first transfer before the mark that
// failed after it was begun; ENOBUFS as for FenceSignal; the context's.
func (e *Endpoint) FenceWait(ctx context.Context, m Mark) error {
	err := e.ep.FenceWait(ctx, fence.Mark{Side: fence.Side(m.Side), Seq: m.Seq})
	return e.fail("fence_wait", contextError(ctx, err))
}

// FenceSignal stores 8-byte values in this end's windows, the peer's, or both,
// after all transfers that s.By has begun so far have completed
// (scif_fence_signal). It does not wait for that. A reader of the value sees the
// transferred bytes. A value at an offset that is a multiple of 8 is stored
// atomically.
//
// Errors: EINVAL if s.By is not one side, s.Where is empty or unknown, or a
// selected offset is not a multiple of 4; ENXIO if a selected offset is not
// registered; EACCES if its window has no [ProtWrite]; ENOTCONN or ECONNRESET;
// ENOBUFS while 1024 waits and signals of the connection are behind transfers that
// have not completed: try again when some have.
func (e *Endpoint) FenceSignal(s Signal) error {
	err := e.ep.FenceSignal(fence.Signal{By: fence.Side(s.By), Where: fence.Where(s.Where),
		LocalOffset: s.LocalOffset, LocalValue: s.LocalValue, RemoteOffset: s.RemoteOffset, RemoteValue: s.RemoteValue})
	return e.fail("fence_signal", err)
}
