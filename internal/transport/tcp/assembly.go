package tcp

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// An assembly puts the bytes of a lane in order: those of small writes come on
// one connection, those of large ones on others. It keeps what has arrived and
// was not taken in a ring, by offset.
type assembly struct {
	buf   []byte  // ring; its length is a power of two, or 0
	small []byte  // the ring before buf, if only buf is above keptRing; it is next when buf is freed
	taken uint64  // offset of the next byte to be taken
	next  uint64  // all bytes before have arrived; taken <= next
	ahead []piece // what was announced at or above next, sorted, without overlap
}

// A piece is a range of offsets that a frame has announced, of which the bytes
// before at have arrived.
type piece struct{ start, at, end uint64 }

// maxPieces bounds ahead. An honest peer sends few large pieces at a time, and
// what lies between them joins.
const maxPieces = 256

// firstRing is the size at which a ring starts, in bytes; one above keptRing is
// freed when it is empty, and the one before it is used again: a lane whose writes
// are large has small frames between them.
const (
	firstRing = 4 << 10
	keptRing  = 64 << 10
)

// A largeRing holds one write that is just large enough for a bulk connection,
// when its reader was not there yet. Lanes lend it each other.
type largeRing [2 * keptRing]byte

// spareRings are the first that are lent again, at most 1 MiB; further ones are in
// largeRings. A pool alone keeps what one processor has given back from the other,
// which then makes a new one.
var (
	spareRings = make(chan *largeRing, 8)
	largeRings = sync.Pool{New: func() any { return new(largeRing) }}
)

func newRing(n int) []byte {
	if n != len(largeRing{}) {
		return make([]byte, n)
	}
	select {
	case r := <-spareRings:
		return r[:]
	default:
		return largeRings.Get().(*largeRing)[:]
	}
}

// freeRing takes back a ring that nobody uses.
func freeRing(buf []byte) {
	if len(buf) != len(largeRing{}) {
		return
	}
	select {
	case spareRings <- (*largeRing)(buf):
	default:
		largeRings.Put((*largeRing)(buf))
	}
}

// announce admits the bytes from start to end, which must be new.
func (a *assembly) announce(start, end uint64) error {
	if start == end {
		return nil
	}
	i, _ := slices.BinarySearchFunc(a.ahead, start, func(p piece, at uint64) int {
		if p.end <= at {
			return -1
		}
		return 1
	})
	if start < a.next || i < len(a.ahead) && a.ahead[i].start < end {
		return fmt.Errorf("%w: bytes %d to %d of a lane come twice", errMalformed, start, end)
	}
	if len(a.ahead) >= maxPieces {
		return fmt.Errorf("%w: more than %d gaps in a lane", errMalformed, maxPieces)
	}
	a.ahead = slices.Insert(a.ahead, i, piece{start, start, end})
	return nil
}

// arrive says that the n bytes at offset at, which were announced, are in place.
func (a *assembly) arrive(at uint64, n int) {
	i := slices.IndexFunc(a.ahead, func(p piece) bool { return p.at == at && p.at < p.end })
	p := &a.ahead[i]
	p.at += uint64(n)
	if i > 0 && p.at == p.end && a.ahead[i-1].at == a.ahead[i-1].end && a.ahead[i-1].end == p.start {
		a.ahead[i-1].at, a.ahead[i-1].end = p.at, p.end
		a.ahead = slices.Delete(a.ahead, i, i+1)
	}
	for len(a.ahead) > 0 && a.ahead[0].start == a.next {
		p := &a.ahead[0]
		a.next = p.at
		if p.at < p.end {
			p.start = p.at
			return
		}
		a.ahead = slices.Delete(a.ahead, 0, 1)
	}
}

// retract says that the bytes from at to end, which were announced and have not
// arrived, will be announced again.
func (a *assembly) retract(at, end uint64) {
	i := slices.IndexFunc(a.ahead, func(p piece) bool { return p.at == at && p.end == end })
	if p := &a.ahead[i]; p.start < at {
		p.end = at
		return
	}
	a.ahead = slices.Delete(a.ahead, i, i+1)
}

// put copies the bytes at offset at, which were announced, into the ring.
func (a *assembly) put(at uint64, p []byte) {
	a.reserve(int(at + uint64(len(p)) - a.taken))
	i := int(at) & (len(a.buf) - 1)
	k := copy(a.buf[i:], p)
	copy(a.buf, p[k:])
	a.arrive(at, len(p))
}

// skip takes n bytes at next that went past the ring. The ring is empty.
func (a *assembly) skip(n int) {
	a.taken += uint64(n)
	a.arrive(a.next, n)
}

// readable returns how many bytes can be taken.
func (a *assembly) readable() int { return int(a.next - a.taken) }

// take moves bytes to p.
func (a *assembly) take(p []byte) int {
	n := min(len(p), a.readable())
	if n == 0 {
		return 0
	}
	i := int(a.taken) & (len(a.buf) - 1)
	k := copy(p[:n], a.buf[i:])
	copy(p[k:n], a.buf)
	a.taken += uint64(n)
	if a.taken == a.next && len(a.ahead) == 0 && len(a.buf) > keptRing {
		freeRing(a.buf)
		a.buf, a.small = a.small, nil
	}
	return n
}

// held returns how many bytes have arrived and were not taken.
func (a *assembly) held() int {
	n := a.readable()
	for _, p := range a.ahead {
		n += int(p.at - p.start)
	}
	return n
}

// reserve makes the ring hold n bytes from taken on.
func (a *assembly) reserve(n int) {
	if n <= len(a.buf) {
		return
	}
	buf := newRing(max(firstRing, 1<<bits.Len(uint(n-1))))
	a.move(buf, a.taken, a.next)
	for _, p := range a.ahead {
		a.move(buf, p.start, p.at)
	}
	if len(buf) > keptRing && len(a.buf) <= keptRing {
		a.small = a.buf
	} else {
		freeRing(a.buf)
	}
	a.buf = buf
}

// move copies the bytes between two offsets into another ring.
func (a *assembly) move(buf []byte, from, to uint64) {
	for from < to {
		i, j := int(from)&(len(a.buf)-1), int(from)&(len(buf)-1)
		n := min(int(to-from), len(a.buf)-i, len(buf)-j)
		copy(buf[j:j+n], a.buf[i:])
		from += uint64(n)
	}
}

// drop says that n announced bytes at offset at have come and are not kept.
func (a *assembly) drop(at uint64, n int) {
	if n > 0 {
		a.arrive(at, n)
	}
	a.taken = a.next
}

// discard drops what has arrived and was not taken, and returns how many bytes
// that are. What is still to come is to be dropped too.
func (a *assembly) discard() int {
	n := a.held()
	a.taken, a.buf, a.small = a.next, nil, nil
	return n
}
