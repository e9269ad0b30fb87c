package ipc

import (
	"io"

	"github.com/fabricd/fabricd/internal/status"
)

// ErrPeerClosed is returned by Recv and TryRecv once everything has been
// received of a connection that the peer closed in order. It has status.Reset
// in its chain, as SCIF wants, and io.EOF, as byte streams want. Only the close of
// the peer's application is in order. A connection that ended in any other way (its
// process died, its node stopped or was lost, the protocol was broken) ends with
// [Lost], which has no io.EOF in its chain: nothing else may wrap io.EOF.
var ErrPeerClosed error = peerClosed{}

type peerClosed struct{}

func (peerClosed) Error() string { return "connection closed by peer" }

func (peerClosed) Unwrap() []error { return []error{status.Reset, io.EOF} }
