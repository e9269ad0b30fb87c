// Package network is what the providers over a network share: how both ends prove
// who they are, what strangers can make a provider hold, and the life of its sessions.
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

// Bounded returns reason as it may be printed, whichever peer wrote it, cut to MaxReason
// bytes at a boundary between characters.
func Bounded(reason string) string {
	if reason = logbound.Text(reason); len(reason) > MaxReason {
		reason = reason[:MaxReason]
	}
	return strings.ToValidUTF8(reason, "")
}

// A CausedError is a CloseError with what led to it in its chain.
type CausedError struct {
	*transport.CloseError
	Cause error
}

// Unwrap returns both.
func (e *CausedError) Unwrap() []error { return []error{e.CloseError, e.Cause} }

// slotGrace is how long an honest peer may take for its part of a handshake while
// others want its slot.
const slotGrace = 250 * time.Millisecond

// Limits returns the shares of total slots for handshakes, of which most are allowed: a
// stranger that holds some open without a word does not keep out the others.
func Limits(total, most int) admission.Limits {
	return admission.Limits{Total: total, Reserved: total / 4, PerAddress: max(1, most/4), PerNetwork: max(1, 3*most/8), Grace: slotGrace}
}
