package attach

import (
	"io"

	"github.com/fabricd/fabricd/internal/status"
)

// ErrPeerClosed is returned by Recv and TryRecv once every byte was received of a connection that
// the peer closed in order. It has status.Reset in its chain, as SCIF requires, and io.EOF, as byte
// streams require. Only a close by the peer's application is in order. A connection that ended in
// any other way (its process died, its node stopped or was lost, the protocol was broken) ends with
// [Lost], which has no io.EOF in its chain: only [ErrPeerShut] may wrap io.EOF too.
var ErrPeerClosed error = peerClosed{}

// ErrPeerShut is returned instead when the peer has shut down its sending side (CloseWrite) and
// every byte was received. It wraps the same errors, but the connection stays open.
var ErrPeerShut error = peerShut{}

type peerShut struct{ peerClosed }

func (peerShut) Error() string { return "the peer sends no more" }

type peerClosed struct{}

func (peerClosed) Error() string { return "connection closed by peer" }

func (peerClosed) Unwrap() []error { return []error{status.Reset, io.EOF} }
