package driver

import (
	"context"

	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/internal/status"
)

// A front is the read that waits for an inbox, the first one if there are several.
// Bytes that come for it go straight to its memory; the others wait for what it
// leaves, in no order and however long: SCIF has one receiver of an endpoint. The inbox's mu guards it, but for woken.
type front struct {
	woken  gate   // something has come, or the end
	p      []byte // its memory; nil: no read waits
	n      int    // bytes of p that are there
	helps  bool   // it may be reading for the session; it alone changes that
	served bool   // the last bytes that came went straight to such a read
}

// tryRead reads what is there. It returns 0 and no error if nothing is there
// but more may come.
func (b *inbox) tryRead(p []byte) (int, error) {
	b.mu.Lock()
	n, err := b.take(p)
	b.leave(n)
	return n, err
}

// read waits until at least one byte is there, the connection ends, or ctx is
// done, and returns what is there.
func (b *inbox) read(ctx context.Context, p []byte) (int, error) {
	for {
		n, waits, err := b.begin(p)
		switch {
		case n > 0 || err != nil || len(p) == 0:
			return n, err
		case waits:
			n, err = b.waitInFront(ctx)
		default:
			select {
			case <-b.more:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// begin is tryRead that, if nothing is there and no other read waits, makes this one
// the front.
func (b *inbox) begin(p []byte) (n int, waits bool, err error) {
	b.mu.Lock()
	n, err = b.take(p)
	if f := &b.front; n == 0 && err == nil && f.p == nil && len(p) > 0 {
		f.p, f.helps, waits = p, f.served && b.helper != nil, true
	}
	b.leave(n)
	return n, waits, err
}

// waitInFront waits as the front until something has come or ctx is done. It may
// return without bytes and error.
func (b *inbox) waitInFront(ctx context.Context) (n int, err error) {
	f := &b.front
	if f.helps && ctx.Err() == nil {
		b.helper.Help(f.woken)
		if len(f.woken) == 0 {
			b.mu.Lock()
			f.helps = false
			b.mu.Unlock()
		}
	}
	select {
	case <-f.woken:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	b.mu.Lock()
	p := f.p
	n, f.p, f.n = f.n, nil, 0
	select {
	case <-f.woken: // it came just now
	default:
	}
	if n > 0 {
		err = nil
	} else if k, end := b.take(p); k > 0 || end != nil {
		n, err = k, end
	}
	b.leave(n)
	return n, err
}

// smallFront is the length of a front below which it gets bytes only if all fit: who
// waits with so little reads on at once, and would find the rest only sometimes.
const smallFront = 4 << 10

// hand puts bytes that have come and are the next ones where a read waits for them,
// and returns how many. Whoever has read them calls it, while fill waits for more.
func (b *inbox) hand(p []byte) int {
	b.mu.Lock()
	f := &b.front
	n := min(len(p), len(f.p)-f.n)
	if n < len(p) && len(f.p) < smallFront {
		n = 0
	}
	if n == 0 || b.flow.Unread() > 0 || b.flow.Muted() || !b.flow.Admits(n) {
		b.mu.Unlock()
		return 0
	}
	copy(f.p[f.n:], p[:n])
	b.flow.Arrive(n)
	b.flow.Take(n)
	b.skipped += uint64(n)
	f.n += n
	f.served = true
	f.woken.signal()
	b.settle()
	over := b.over
	b.mu.Unlock()
	if over {
		b.notify()
	}
	return n
}

// wake wakes the front, or else whoever waits. The caller holds mu.
func (b *inbox) wake() {
	f := &b.front
	if f.p == nil {
		b.more.signal()
		return
	}
	f.woken.signal()
	if f.helps {
		b.helper.Rouse()
	}
}

// leave ends a read of n bytes: there may be room now, or something for others. The
// caller holds mu, which leave lets go.
func (b *inbox) leave(n int) {
	filled := n > 0 && b.flow.Unread()+n >= b.window
	limit, grant := b.flow.Grant()
	if b.flow.Unread() > 0 || b.flow.Muted() || b.over {
		b.wake()
	}
	b.mu.Unlock()
	if filled {
		b.room.signal()
	}
	if grant {
		b.credit(limit)
	}
}

// take copies bytes out of the ring. The caller holds mu.
func (b *inbox) take(p []byte) (n int, err error) {
	if b.flow.Muted() {
		return 0, status.Reset
	}
	for n < len(p) && b.flow.Unread() > 0 {
		k := copy(p[n:], b.chunk(b.flow.Read()))
		n += k
		b.flow.Take(k)
	}
	switch {
	case n > 0 || b.flow.Unread() > 0:
		return n, nil
	case b.flow.PeerClosed() && b.half:
		return 0, ipc.ErrPeerShut
	case b.flow.PeerClosed():
		return 0, ipc.ErrPeerClosed
	case b.flow.Over():
		return 0, b.lost
	}
	return 0, nil
}
