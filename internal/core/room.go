package core

import "github.com/fabricd/fabricd/fence"

// MayBegin reports whether another operation may begin. If not, it has
// to wait for the mark and then ask again: an operation that has failed makes
// room too.
func (c *Conn[M]) MayBegin() (m fence.Mark, ok bool) {
	if c.Room() {
		return m, true
	}
	return c.Oldest(), false
}

// MayChange returns the counterpart of MayBegin for an operation that changes the n bytes
// at roff of the peer and takes its bytes from l: it must not overtake a read
// either ([Conn.Clash]).
func (c *Conn[M]) MayChange(l Local, roff, n int64) func() (m fence.Mark, ok bool) {
	return func() (fence.Mark, bool) {
		if m, clash := c.Clash(l, roff, n); clash {
			return m, false
		}
		return c.MayBegin()
	}
}
