package engine

import (
	"context"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// tryRead reads the bytes at hand. It returns 0 and no error if there are none but more may come.
func (b *inbox) tryRead(p []byte) (int, error) {
	b.mu.Lock()
	n, err := b.take(p)
	b.leave(n)
	return n, err
}

// read waits until at least one byte is there, the connection ends, or ctx is
// done, and returns the bytes at hand.
func (b *inbox) read(ctx context.Context, p []byte) (int, error) {
	for {
		n, err := b.tryRead(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-b.more:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// leave ends a read of n bytes: there may be room now, or something for others. The
// caller holds mu, which leave lets go.
func (b *inbox) leave(n int) {
	filled := n > 0 && b.flow.Unread()+n >= b.window
	limit, grant := b.flow.Grant()
	if b.flow.Unread() > 0 || b.flow.Muted() || b.over {
		b.more.signal()
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
		return 0, attach.ErrPeerShut
	case b.flow.PeerClosed():
		return 0, attach.ErrPeerClosed
	case b.flow.Over():
		return 0, b.lost
	}
	return 0, nil
}
