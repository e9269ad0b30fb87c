package proto

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fabricd/fabricd/internal/status"
)

// ErrNodeGone is the error of calls after the end of the session.
var ErrNodeGone = fmt.Errorf("the node is gone: %w", status.NoDevice)

// OtherGaveUp is the reason in JOINED if the other side cannot use the shared-memory path. The node
// knows that side's reason.
const OtherGaveUp = "the other application cannot use its side"

// CauseNotTaken is the cause of a connection that could not be reported to its acceptor.
const CauseNotTaken = "its acceptor could not take it"

// ReasonOf is an error's text without its status code's text, which adds no information.
func ReasonOf(err error) string {
	return strings.Replace(err.Error(), ": "+status.Of(err).Error(), "", 1)
}

// Passes reports whether a later request for the path may succeed.
func Passes(why error) bool {
	code := status.Of(why)
	return code == status.Again || code == status.NoMemory
}

// Coded returns err with code in its chain unless it has one.
func Coded(err error, code status.Code) error {
	if _, ok := errors.AsType[status.Code](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", code, err)
}
