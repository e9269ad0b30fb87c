package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// An OpError is every failure of this package: an operation, the two ends it
// was about, and the cause. Its chain answers [errors.Is] for
//
//   - the errno that SCIF documents (syscall.ECONNRESET, syscall.EINVAL, …),
//   - net.ErrClosed for a closed endpoint, connection or listener,
//   - os.ErrDeadlineExceeded and the context's error for a canceled call,
//   - io.EOF beside syscall.ECONNRESET when the peer closed in order, and only then.
//
// Any other ECONNRESET has a [*LostError] for [errors.As] if the cause is known: the peer's
// application died, its fabricd stopped, its node was removed, the link was silent.
//
// It is a [net.Error].
type OpError struct {
	Op     string // SCIF's name of the call without its prefix: "connect", "vwriteto"
	Local  Addr   // port 0 while the endpoint is not bound; addr.NoNode for Attach
	Remote Addr   // the zero Addr when the operation has no peer
	Err    error  // never nil
}

// Error returns one line with operation, ends, cause, and a hint where the
// cause alone does not show the remedy.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	switch {
	case e.Local.Node == addr.NoNode: // before there is a node
	case e.Local.Port == 0:
		fmt.Fprintf(&b, " node %d", e.Local.Node)
	default:
		b.WriteString(" " + e.Local.String())
	}
	if e.Remote != (Addr{}) {
		b.WriteString("->")
		b.WriteString(e.Remote.String())
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if h := e.hint(); h != "" {
		b.WriteString(" (")
		b.WriteString(h)
		b.WriteByte(')')
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Errno returns the errno that SCIF documents for the failure: ETIMEDOUT or
// ECANCELED for a call that its context ended, EBADF for a closed endpoint.
func (e *OpError) Errno() syscall.Errno { return status.Of(e.Err).Errno() }

// Timeout reports whether the operation ended because of a deadline, or had
// nothing to do now.
func (e *OpError) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Temporary reports whether the same call may succeed later: after a time-out, and
// when a bound is reached (ENOMEM, ENOBUFS, ENOSPC), and of an Accept also after EACCES, as
// the listener goes on. Servers such as net/http's then go on to Accept. [net.Error] requires it.
func (e *OpError) Temporary() bool {
	switch status.Of(e.Err) {
	case status.NoMemory, status.NoBufs, status.NoSpace, status.Busy:
		return true
	case status.Access:
		return e.Op == "accept" // the listener goes on, and its name may be allowed later
	}
	return e.Timeout()
}

// hint is advice about the failure, "" if the cause is advice enough.
func (e *OpError) hint() string {
	code := status.Of(e.Err)
	bare := e.Err == error(code)
	switch {
	case !bare && (e.Op == "listen" || e.Op == "connect" || code == status.NoMemory):
		return "" // a longer cause needs no hint
	case e.Op == "bind" && code == status.Invalid && e.Local.Port != 0:
		return "the endpoint is bound already"
	case e.Op == "connect" && code == status.Invalid && e.Remote.Port == 0:
		return "port 0 is nobody's"
	case e.Op == "connect" && code == status.NoDevice:
		return fmt.Sprintf("node %d is no member now, or this node cannot reach it, or it the target that it exposes: see fabricd ping %d", e.Remote.Node, e.Remote.Node)
	}
	return hints[e.Op][code]
}

// mayNot is the hint for an access that a window does not allow.
const mayNot = "a window's protection does not allow this direction"

var (
	transferHints = map[status.Code]string{
		status.NoAddress: "the range must lie in registered windows without a gap",
		status.Access:    mayNot,
	}
	putHints = map[status.Code]string{
		status.NoAddress: transferHints[status.NoAddress],
		status.Access:    mayNot,
		status.Invalid:   "there must be a byte to write, and the word's offset must be a multiple of 8",
	}
	windowHints = map[status.Code]string{
		status.Invalid:  fmt.Sprintf("memory, offset and length must be whole pages of %d bytes, aligned, and cut no window", PageSize),
		status.InUse:    "a window, or one that is still in use after Unregister, has these offsets",
		status.NoMemory: "the quota of window memory is used up",
	}
)

// hints are the hints that depend on nothing but the operation and its failure.
var hints = map[string]map[status.Code]string{
	"attach": {status.NoDevice: "does fabricd run on this machine? its socket's path is in $FABRIC_SOCKET"},
	"bind": {
		status.Access:  fmt.Sprintf("ports below %d need privilege on this node", AdminEnd),
		status.Invalid: "the port is taken on this node",
	},
	"listen": {status.Invalid: "the endpoint must be bound and the backlog at least 1"},
	"connect": {
		status.Refused: "nothing listens there, its backlog is full, no accept came in time, the target of an expose refused, or a rule there refuses this caller",
		status.Invalid: "an endpoint whose connection ended cannot connect again: open a new one",
	},
	"register": windowHints, "unregister": windowHints,
	"mmap": {
		status.NotSupp:   "mapping needs both ends on one node and a range inside one window; a Mirror works across nodes",
		status.NoAddress: "the range must lie inside one registered window",
		status.Access:    mayNot,
	},
	"atomic": {
		status.NoAddress: transferHints[status.NoAddress],
		status.Access:    mayNot,
		status.Invalid:   "a word's offset must be a multiple of its width",
	},
	"word": {
		status.NoAddress: "the word must lie in the memory",
		status.Access:    "the mapping was made for reading",
		status.Invalid:   "a word's offset must be a multiple of its width",
	},
	"putsignal": putHints, "vputsignal": putHints,
	"writeto": transferHints, "readfrom": transferHints, "vwriteto": transferHints, "vreadfrom": transferHints,
	"fence_signal": transferHints, "acquire": transferHints, "release": transferHints,
}

// contextEnd is the cause of a call that its context ended.
type contextEnd struct{ ctxErr error }

func (w contextEnd) Error() string { return w.ctxErr.Error() }

func (w contextEnd) Unwrap() []error {
	if errors.Is(w.ctxErr, context.DeadlineExceeded) || errors.Is(w.ctxErr, os.ErrDeadlineExceeded) {
		return []error{w.ctxErr, status.TimedOut}
	}
	return []error{w.ctxErr, status.Canceled}
}

// contextError returns err, or contextEnd if it is the session's error for the end of ctx.
func contextError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	ctxErr := ctx.Err()
	if ctxErr == nil {
		return err
	}
	switch status.Of(err) {
	case status.Canceled, status.TimedOut:
		return contextEnd{ctxErr}
	}
	return err
}
