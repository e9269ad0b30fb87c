package core

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// Holding returns the registered window of this end that off is in, whatever
// its protection: for a peer on this node that is going to use it more than
// once. The window is not retained. Without one the error is
// status.NoAddress.
func (c *Conn[M]) Holding(off int64) (*rma.Window[M], error) {
	if c.failed != status.OK {
		return nil, c.failed
	}
	sp, err := c.own.Within(off, 1, 0)
	if err != nil {
		return nil, err
	}
	return sp.Window, nil
}
