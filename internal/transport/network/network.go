// Package network is shared by the providers over a network: mutual authentication, limits on
// resources that unauthenticated peers can take, and the sessions' life cycle.
package network

import (
	"strings"

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
