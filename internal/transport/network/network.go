// Package network is shared by the providers over a network: mutual authentication, limits on
// resources that unauthenticated peers can take, and the sessions' life cycle.
package network

import (
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/transport"
)

// MaxReason bounds the reason of a session's end, in bytes.
const MaxReason = 256

// Bounded returns reason, from any peer, in printable form, truncated to MaxReason bytes at a
// boundary between characters.
func Bounded(reason string) string {
	if reason = logbound.Text(reason); len(reason) > MaxReason {
		reason = reason[:MaxReason]
	}
	return strings.ToValidUTF8(reason, "")
}

// A CausedError is a CloseError with its cause in its chain.
type CausedError struct {
	*transport.CloseError
	Cause error
}

// Unwrap returns both.
func (e *CausedError) Unwrap() []error { return []error{e.CloseError, e.Cause} }

// slotGrace is how long a correct peer may take for its part of a handshake while others wait for
// its slot.
const slotGrace = 250 * time.Millisecond

// Limits returns the shares of total slots for handshakes, of which most are allowed: a peer that
// holds some open without sending does not block the others.
func Limits(total, most int) admission.Limits {
	return admission.Limits{Total: total, Reserved: total / 4, PerAddress: max(1, most/4), PerNetwork: max(1, 3*most/8), Grace: slotGrace}
}
