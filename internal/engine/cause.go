package engine

import (
	"errors"
	"io"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// resetVersion is the first version of the protocol that has a Close with reset.
const resetVersion = 3

// canSay reports whether the link's version has such a Close. Without it the
// connection is cut off: no peer may take that for a good end.
func (c *conn) canSay(bye wire.Close) bool {
	return !bye.Reset || c.link.version >= resetVersion
}

// blame notes why the connection is lost. The first cause counts, and none
// after a close of either side. The caller holds mu.
func (c *conn) blame(cause string) {
	if c.cause == "" && !isClosed(c.bye.closing) && !c.bye.received && !c.failed {
		if c.cause = attach.CleanCause(cause); c.cause != "" {
			c.link.n.counters.reset(c.cause)
		}
	}
}

// why returns the cause; "" if the connection was not lost.
func (c *conn) why() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// overLocked is why no call begins anything any more, nil while one may. The caller holds mu.
func (c *conn) overLocked() error {
	if c.failed || isClosed(c.bye.closing) {
		return attach.Lost(c.cause)
	}
	return nil
}

// asError returns code as an error, which of a reset has the cause in its text.
func (c *conn) asError(code status.Code) error {
	switch code {
	case status.OK:
		return nil
	case status.Reset:
		return attach.Lost(c.why())
	}
	return code
}

// cutOff fails the connection because a stream of it has broken, with err if that is
// known. With a session that has ended, the whole link fails: it knows the cause.
func (c *conn) cutOff(err error) {
	if closeError(err) != nil || c.link.sess.Err() != nil {
		c.link.sessionEnded(err)
	}
	switch {
	case errors.Is(err, status.Protocol):
		c.fail("the peer's node broke the protocol")
	case err == nil || err == io.EOF:
		c.fail("the peer's node cut it off")
	default:
		c.fail("the peer's node cut it off: " + err.Error())
	}
}
