package load

import "time"

const (
	lentSize = 4 * pageSize
	lentFor  = 4 * time.Millisecond // at most
	borrows  = 4
)

// A lender is an end that registers windows beside its operations, one after the other,
// and unregisters each while the peer may be reading it.
type lender struct {
	e    *End
	pace *Pacer
	mem  Memory
}

func (e *End) lend(now time.Duration) Step {
	mem, err := e.env.Alloc(lentSize)
	if err != nil {
		return e.without(err)
	}
	return (&lender{e: e, mem: mem, pace: e.plan.AtRate(e.plan.Windows, now)}).wait()
}

func (l *lender) wait() Step { return Step{Call: Call{Do: Pace, Pace: l.pace}, Then: l.next} }

func (l *lender) end(r Result) Step {
	_ = l.mem.Close() // unmaps; there is nothing to do about a failure
	return ended(r)
}

// next lends a window.
func (l *lender) next(r Result) Step {
	if r.Over {
		return l.end(r)
	}
	nonce := l.e.env.Nonce()
	stamp(l.mem.Bytes(), fillOf(nonce), 0)
	c := Call{Do: Register, Mem: l.mem, Len: lentSize}
	return Step{Call: c, Then: orEnd(l.end, func(r Result) Step {
		off := r.N
		return send(putFrame(frameLent, uint64(off)), orEnd(l.end, func(Result) Step {
			c := Call{Do: Sleep, For: time.Duration(nonce % uint64(lentFor))}
			return Step{Call: c, Then: func(Result) Step { return l.takeBack(off) }}
		}))
	})}
}

// takeBack unregisters a window. From then on its memory is the application's alone,
// which uses it for something else.
func (l *lender) takeBack(off int64) Step {
	c := Call{Do: Unregister, Offset: off, Len: lentSize}
	return Step{Call: c, Then: orEnd(l.end, func(Result) Step {
		clear(l.mem.Bytes())
		return l.wait()
	})}
}

// borrow reads a window that the peer has lent, several times, so that the peer still
// sends when it wants the window back. It may be gone already; a read that was begun
// finds it as it was.
func (e *End) borrow(off int64) Step {
	dst, read := make([]byte, borrows*lentSize), 0
	over := Step{Over: true} // a failure on a lent window is no failure of the connection
	var next func(Result) Step
	next = func(r Result) Step {
		if r.Status != "" {
			return over
		}
		if read < borrows {
			part := dst[read*lentSize:][:lentSize]
			read++
			return Step{Call: Call{Do: Transfer, RMA: Operation{Verb: VRead, Len: lentSize}, Buf: part, Remote: off, Quiet: true}, Then: next}
		}
		return quiet(fenceWait(false, func(r Result) Step {
			e.noteUnexpected(r.Status)
			if r.Status == "" && !e.lentWhole(dst) {
				e.env.Bug("a window was given back while a read of it was under way")
			}
			return over
		}))
	}
	return next(Result{})
}

// lentWhole reports whether each part holds the fill of one lent window: a read that
// had to wait finds the next window at the same place.
func (e *End) lentWhole(dst []byte) bool {
	for ; len(dst) > 0; dst = dst[lentSize:] {
		writer := tag(e.env.Load(dst)).writer()
		if e.env.Load(dst) == 0 {
			return false
		}
		for i := range lentSize / 8 {
			if tag(e.env.Load(dst[i*8:])) != tagAt(writer, 0, i) {
				return false
			}
		}
	}
	return true
}

// quiet makes all calls of a chain quiet.
func quiet(s Step) Step {
	s.Call.Quiet = true
	if then := s.Then; then != nil {
		s.Then = func(r Result) Step { return quiet(then(r)) }
	}
	return s
}
