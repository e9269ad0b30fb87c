package fabric

import (
	"context"

	"github.com/fabricd/fabricd/internal/status"
)

// A PollItem asks [Node.Poll] about one endpoint (struct scif_pollepd).
type PollItem struct {
	Endpoint *Endpoint // nil: the item is passed over, its Revents 0
	Events   Events    // the events asked for: PollIn, PollOut, PollRdHup, or none
	Revents  Events    // set by Poll: those of them that hold; PollErr, PollHup and PollNval always
}

// Poll waits until an event of an item holds, sets every item's Revents, and
// returns how many of them are not 0 (scif_poll). It reports states, not
// changes: an event that holds is reported by every Poll.
//
//	listening     PollIn if a request waits
//	connected     PollIn if there are bytes, PollOut if there is room
//	              after the peer's CloseWrite, with nothing left: PollIn and PollRdHup
//	disconnected  PollHup, and PollIn while there are bytes
//	TryConnect    nothing until it is decided, then PollOut
//	closed        PollNval; a Poll that waits is woken by Close
//	else          PollErr
//
// When ctx is done first, it returns 0 and the context's error; with a ctx that
// is done already Poll only looks. Without items it waits for ctx.
func (n *Node) Poll(ctx context.Context, items []PollItem) (int, error) {
	if ready := check(items); ready > 0 {
		return ready, nil
	}
	// One token is enough: after it, all items are checked again.
	changed := make(chan struct{}, 1)
	for _, it := range items {
		if it.Endpoint != nil {
			stop := it.Endpoint.ep.Notify(changed)
			defer stop()
		}
	}
	for {
		if ready := check(items); ready > 0 {
			return ready, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, n.fail("poll", contextError(ctx, status.Canceled))
		case <-n.session.Done():
			if ready := check(items); ready > 0 {
				return ready, nil
			}
			return 0, n.fail("poll", status.BadFD)
		}
	}
}

// check sets every item's Revents and returns how many are not 0.
func check(items []PollItem) (ready int) {
	const always = PollErr | PollHup | PollNval
	for i := range items {
		it := &items[i]
		it.Revents = 0
		if it.Endpoint == nil {
			continue
		}
		it.Revents = Events(it.Endpoint.ep.Ready()) & (it.Events | always)
		if it.Revents != 0 {
			ready++
		}
	}
	return ready
}
