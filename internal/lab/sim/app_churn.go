package sim

import (
	"encoding/binary"
	"time"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/rma"
)

// frameLent tells the peer of a window that it may read until its owner takes
// it back, which it does without a word: offset.
const (
	frameLent = 'L'
	lentSize  = 4 * rma.PageSize
	lentFor   = 4 * time.Millisecond // at most
	borrows   = 4
)

// A lender is an end that registers windows beside its operations, one after the
// other, and unregisters each while the peer may be reading it.
type lender struct {
	e    *appEnd
	pace *pace
}

func (e *appEnd) lend() {
	e.loops++
	l := &lender{e: e, pace: newPace(e, e.a.w.load.windows)}
	l.pace.wait(l.next)
}

func (l *lender) next() {
	e := l.e
	if e.canceled || e.closed {
		e.loopEnded(true)
		return
	}
	m := &memory{bytes: make([]byte, lentSize)}
	stamp(m.bytes, fillOf(e.a.nonce()), 0)
	e.try("register", func(done func(int64, error)) { e.ep.register(m, done) }, func(off int64, err error) {
		if err != nil {
			e.loopEnded(true)
			return
		}
		e.send(putFrame(frameLent, uint64(off), 0, 0), func(_ int64, err error) {
			if err != nil {
				e.loopEnded(true)
				return
			}
			e.a.p.after(between(e.a.p.rng, 0, lentFor), func() { l.takeBack(m, off) })
		})
	})
}

// takeBack unregisters a window. From then on its memory is the application's
// alone, who uses it for something else.
func (l *lender) takeBack(m *memory, off int64) {
	e := l.e
	e.try("unregister", func(done func(int64, error)) {
		e.ep.unregister(off, lentSize, func(err error) { done(0, err) })
	}, func(_ int64, err error) {
		if err != nil {
			e.loopEnded(true)
			return
		}
		clear(m.bytes)
		l.pace.wait(l.next)
	})
}

// borrow reads a window that the peer has lent, several times, so that the
// peer still sends when it wants the window back. It may be gone already; a read
// that was begun finds it as it was.
func (e *appEnd) borrow(off int64) {
	dst := make([]byte, borrows*lentSize)
	look := func(err error) {
		e.a.p.soon(func() {
			e.honest(err)
			for i := 0; i < borrows && err == nil; i++ {
				part := dst[i*lentSize:][:lentSize]
				// A read that had to wait finds the next window at the same place.
				if first := tag(binary.LittleEndian.Uint64(part)); first == 0 || !stamped(part, first.writer(), 0) {
					e.a.w.watch.at(e.a.src, "a window was given back while a read of it was under way")
				}
			}
		})
	}
	e.s.n.p.soon(func() { e.readLent(dst, off, look) })
}

// readLent reads the window at off into each part of dst, one after the other.
// look is called when they have ended, if all were begun.
func (e *appEnd) readLent(dst []byte, off int64, look func(error)) {
	if len(dst) > 0 {
		e.ep.transfer(core.Local{Buf: dst[:lentSize], Length: lentSize}, off, true, 0, func(err error) {
			if err == nil {
				e.readLent(dst[lentSize:], off, look)
			}
		})
		return
	}
	e.ep.mark(fence.InitSelf, func(m fence.Mark, err error) {
		if err == nil {
			e.ep.wait(m, look)
		}
	})
}
