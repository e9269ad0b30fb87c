package core

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// Operations of the peer that do not come over the operations stream. They are checked as
// those that do, and counted by the caller that brings them.

// An Announced is a window that the peer has announced.
type Announced struct {
	Offset, Length int64
	Prot           rma.Prot
}

// AnnouncedAt returns the peer's window that off is in, whatever its protection. Without
// one the error is status.NoAddress.
func (c *Conn[M]) AnnouncedAt(off int64) (Announced, error) {
	if c.failed != status.OK {
		return Announced{}, c.failed
	}
	sp, err := c.peer.Within(off, 1, 0)
	if err != nil {
		return Announced{}, err
	}
	return Announced{sp.Window.Offset, sp.Window.Length, sp.Window.Prot}, nil
}

// PeerBegin appends to dst the parts of the windows that make up [off, off+n), for an
// operation of the peer that needs need, and holds them until PeerEnd.
func (c *Conn[M]) PeerBegin(dst []rma.Span[M], off, n int64, need rma.Prot) ([]rma.Span[M], status.Code) {
	switch {
	case c.failed != status.OK:
		return dst, c.failed
	case c.shut:
		return dst, status.Reset
	case n <= 0:
		return dst, status.Invalid
	}
	spans, err := c.own.PeerSpans(dst, off, n, need)
	if err != nil {
		return dst, status.Of(err)
	}
	c.retain(spans)
	return spans, status.OK
}

// PeerEnd releases the windows that PeerBegin held. err is of the memory; its code is returned.
func (c *Conn[M]) PeerEnd(spans []rma.Span[M], err error) status.Code {
	c.releaseAll(spans)
	return MemoryCode(err)
}

// PeerAtomic returns where a is to be performed for the peer. Nothing else of this Conn
// comes before that.
func (c *Conn[M]) PeerAtomic(a rma.Atomic) (rma.Span[M], status.Code) {
	if c.failed != status.OK {
		return rma.Span[M]{}, c.failed
	}
	return c.atomicAt(a)
}

// PeerStore returns where a signal of the peer is to be stored, behind all its operations:
// if any was refused, so is the signal. Nothing else of this Conn comes before that.
func (c *Conn[M]) PeerStore(off int64) (rma.Span[M], status.Code) {
	if c.failed != status.OK {
		return rma.Span[M]{}, c.failed
	}
	return c.signalAt(off)
}

// PeerRefused notes that an operation of the peer was refused.
func (c *Conn[M]) PeerRefused(code status.Code) {
	if c.in.refused == status.OK {
		c.in.refused = code
	}
}
