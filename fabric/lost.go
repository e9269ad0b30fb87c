package fabric

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/fabricd/fabricd/internal/attach"
)

// A LostError is the cause of the loss of a connection. [errors.As] finds it in the error of a
// call that failed with ECONNRESET, unless the peer closed in order, or the cause is unknown.
type LostError struct {
	Cause Cause
	Text  string // the cause in words: one printable line, at most 256 bytes
}

// Error returns the cause in words.
func (e *LostError) Error() string { return e.Text }

// Unwrap returns ECONNRESET.
func (e *LostError) Unwrap() error { return syscall.ECONNRESET }

// A Cause is one of the reasons for which a connection is lost.
type Cause uint8

// The values of a Cause.
const (
	OtherCause     Cause = 0 // see [LostError].Text
	PeerDied       Cause = 1 // the process of the peer's application ended
	PeerDetached   Cause = 2 // the peer's application closed its [Node], or fabricd ended its session
	PeerAborted    Cause = 3 // the peer's application gave it up, as [Conn.Abort] does
	NodeStopped    Cause = 4 // the fabricd of an end stopped
	NodeLost       Cause = 5 // the peer's node was removed
	LinkSilent     Cause = 6 // nothing came from the peer's node for the silence bound
	PathSilent     Cause = 7 // nothing came over the path of this connection, though its node answers
	ProtocolBroken Cause = 8 // the peer's node broke the protocol
)

var causeNames = [...]string{"other", "peer died", "peer detached", "peer aborted", "node stopped", "node removed", "link silent", "path silent", "protocol broken"}

// String returns the cause in one or two words.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// causes are the causes that the node distinguishes.
var causes = map[attach.Loss]Cause{
	attach.LossPeerDied: PeerDied, attach.LossDetached: PeerDetached, attach.LossAborted: PeerAborted, attach.LossNodeStopped: NodeStopped,
	attach.LossNodeRemoved: NodeLost, attach.LossLinkSilent: LinkSilent, attach.LossPathSilent: PathSilent, attach.LossProtocol: ProtocolBroken,
}

// As finds the cause of a loss as a [*LostError].
func (e *OpError) As(target any) bool {
	lost, ok := target.(**LostError)
	if !ok {
		return false
	}
	words, ok := errors.AsType[interface {
		error
		Cause() string
	}](e.Err)
	if ok {
		*lost = &LostError{causes[attach.LossOf(words.Cause())], words.Cause()}
	}
	return ok
}
