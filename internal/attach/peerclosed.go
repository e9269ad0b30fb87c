package attach

import (
	"io"

	"github.com/fabricd/fabricd/internal/status"
)

// ErrPeerClosed is returned by Recv and TryRecv once everything has been
// received of a connection that the peer closed in order. It has status.Reset
// in its chain, as SCIF wants, and io.EOF, as byte streams want. Only the close of
// the peer's application is in order. A connection that ended in any other way (its
// process died, its node stopped or was lost, the protocol was broken) ends with
// [Lost], which has no io.EOF in its chain: nothing but [ErrPeerShut] may wrap io.EOF too.
var ErrPeerClosed error = peerClosed{}

// ErrPeerShut is what they return when the peer has ended what it sends (CloseWrite), and
// everything was received: ErrPeerClosed but for the connection, which goes on.
var ErrPeerShut error = peerShut{}

type peerShut struct{ peerClosed }

func (peerShut) Error() string { return "the peer sends no more" }

type peerClosed struct{}

func (peerClosed) Error() string { return "connection closed by peer" }

func (peerClosed) Unwrap() []error { return []error{status.Reset, io.EOF} }
