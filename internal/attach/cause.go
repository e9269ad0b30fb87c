package attach

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// MaxCause is the longest cause of a lost connection, in bytes.
const MaxCause = 256

// Causes of a lost connection that both the attach client and the engine use.
const (
	CauseDied     = "the peer's application died"
	CauseDetached = "the peer's application detached"
	CauseAborted  = "the peer's application gave it up"
)

// CauseStopped is the cause of connections whose node stops.
func CauseStopped(node addr.NodeID) string {
	if node == addr.NoNode {
		return "a fabricd without an ID stopped"
	}
	return fmt.Sprintf("fabricd of node %d stopped", node)
}

// CleanCause returns text as a cause is stored and shown: one printable line of at most MaxCause
// bytes. Every cause from another process passes through it.
func CleanCause(text string) string {
	text = strings.TrimSpace(Printable(text))
	if len(text) <= MaxCause {
		return text
	}
	n := MaxCause
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Lost is the error of a connection that ended without an orderly close: status.Reset is in its
// chain, and cause, which may be empty, in its text.
func Lost(cause string) error {
	if cause = CleanCause(cause); cause == "" {
		return status.Reset
	}
	return lost(cause)
}

type lost string

func (l lost) Error() string { return status.Reset.Error() + ": " + string(l) }

func (lost) Unwrap() error { return status.Reset }

// Cause returns the cause without the status.
func (l lost) Cause() string { return string(l) }

// Printable returns text, which an application supplied, as one line. It replaces control and other
// unprintable characters by spaces: a terminal would execute them.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
}

// CauseNodeGone is the cause of all connections of a session that the node has ended.
const CauseNodeGone = "the fabricd of this node is gone"
