package engine

import (
	"io"
	"sync"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// A gate wakes waiters. A signal without a waiter is kept, once. A waiter
// that was woken and leaves the condition true for others passes the signal on.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) signal() { wait.Notify(g) }

// In bytes: the first ring of an inbox, and the smallest window of all.
const (
	inboxFirst = 1 << 10
	windowUnit = 4 << 10
)

// An inbox holds the message bytes that have arrived on a connection and that the application has
// not read. Its bound is the window: the peer is never allowed to send more, so that its stream is
// always drained, and a receiver that reads nothing holds up no other connection.
type inbox struct {
	window int                // a power of two
	credit func(limit uint64) // sends the peer its new limit; called without mu
	notify func()             // the endpoint's readiness may have grown; called without mu
	more   gate               // bytes arrived or the end is known
	room   gate               // the ring, which was full, is not any more
	full   chan struct{}      // closed when nothing more will arrive

	mu   sync.Mutex  // guards the fields below
	ring []byte      // its length is a power of two, at most window
	flow core.Inflow // its unread bytes are in the ring
	over bool        // full is closed
	lost error       // the error of a read behind the last byte, but for an orderly end
	half bool        // the peer has ended its direction, and not closed
}

func newInbox(window int, credit func(uint64), notify func()) *inbox {
	return &inbox{window: window, credit: credit, notify: notify, more: newGate(), room: newGate(),
		full: make(chan struct{}), lost: status.Reset, flow: core.NewInflow(window)}
}

// fill reads stream until it ends: the body of a connection's message reader. It
// returns status.Protocol if the peer sends more than it was allowed to. While
// the window is full it does not read: an honest peer has nothing to send then.
func (b *inbox) fill(stream io.Reader) error {
	for {
		p := b.space()
		if p == nil {
			select {
			case <-b.room:
				continue
			case <-b.full:
				return nil
			}
		}
		n, err := stream.Read(p)
		if n > 0 && !b.arrived(n) {
			return status.Protocol
		}
		if err == io.EOF {
			return b.close() // Close, on the operations stream, has the total to compare with
		}
		if err != nil {
			return err
		}
	}
}

// close records that the stream has ended. It returns status.Protocol if the
// peer has announced more bytes.
func (b *inbox) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.flow.Cut() {
		return status.Protocol
	}
	return nil
}

// done reports whether the end of the stream does not matter any more.
func (b *inbox) done() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flow.Muted() || b.over
}

// space returns room for the next read, nil if the window is full. Only fill
// calls it; the room is fill's until arrived.
func (b *inbox) space() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.flow.Unread()
	if used == len(b.ring) {
		if len(b.ring) >= b.window {
			return nil
		}
		b.grow()
	}
	at := b.index(b.flow.Arrived(), len(b.ring))
	return b.ring[at:min(len(b.ring), at+len(b.ring)-used)]
}

// index returns where in a ring of size bytes the byte at a position of the stream belongs.
func (b *inbox) index(at uint64, size int) int { return int(at) & (size - 1) }

// grow makes the ring, which is full, four times as large, up to the window.
func (b *inbox) grow() {
	ring := make([]byte, min(b.window, max(inboxFirst, 4*len(b.ring))))
	for at := b.flow.Read(); at < b.flow.Arrived(); {
		n := copy(ring[b.index(at, len(ring)):], b.chunk(at))
		at += uint64(n)
	}
	b.ring = ring
}

// chunk returns the bytes from position at on that lie together.
func (b *inbox) chunk(at uint64) []byte {
	from := b.index(at, len(b.ring))
	return b.ring[from:min(len(b.ring), from+int(b.flow.Arrived()-at))]
}

// arrived counts n bytes that fill has read into space. It reports false if
// they are more than the peer was allowed to send or said to have sent.
func (b *inbox) arrived(n int) bool {
	b.mu.Lock()
	ok := b.flow.Arrive(n)
	b.changed()
	return ok
}

// settle closes full once nothing more will arrive. The caller holds mu.
func (b *inbox) settle() {
	if !b.over && b.flow.Over() {
		b.over = true
		close(b.full)
	}
}

// shut records that the peer sends no more after total bytes. It reports false if it may
// not say so.
func (b *inbox) shut(total uint64) bool {
	b.mu.Lock()
	ok := !b.half && b.flow.End(total, false)
	b.half = true
	b.changed()
	return ok
}

// end records that the peer closes after total bytes: in order, or for lost if that
// is not nil. It reports false if more have arrived already, or never will.
func (b *inbox) end(total uint64, lost error) bool {
	b.mu.Lock()
	b.half = false
	if lost != nil {
		b.lost = lost
	}
	ok := b.flow.End(total, lost != nil)
	b.changed()
	return ok
}

// lose records that the connection was cut off, for err. Bytes that arrived stay readable.
func (b *inbox) lose(err error) {
	b.mu.Lock()
	if !b.over {
		b.lost = err
	}
	b.flow.Lose()
	b.changed()
}

// mute records that this end has closed: blocked reads end, later bytes are dropped.
func (b *inbox) mute() {
	b.mu.Lock()
	b.flow.Mute()
	b.ring = nil
	b.more.signal()
	b.mu.Unlock()
	b.room.signal()
}

// changed wakes readers that wait for bytes or for the end. The caller holds mu,
// which changed lets go.
func (b *inbox) changed() {
	b.settle()
	b.more.signal()
	b.mu.Unlock()
	b.notify()
}

// readable reports whether a read would return bytes.
func (b *inbox) readable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flow.Unread() > 0
}

// drained reports whether a read would return attach.ErrPeerShut.
func (b *inbox) drained() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.half && b.flow.PeerClosed() && b.flow.Unread() == 0
}
