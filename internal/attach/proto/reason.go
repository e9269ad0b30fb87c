package proto

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fabricd/fabricd/internal/status"
)

// ErrNodeGone is the error of calls after the end of the session.
var ErrNodeGone = fmt.Errorf("the node is gone: %w", status.NoDevice)

// OtherGaveUp is what JOINED says of a channel that the other side cannot use. Why
// it cannot, the node knows.
const OtherGaveUp = "the other application cannot use its side"

// CauseUnheard is that of a connection which nobody could be told of.
const CauseUnheard = "its acceptor could not take it"

// ReasonOf is an error's text without its code, of which people learn nothing
// beside it.
func ReasonOf(err error) string {
	return strings.Replace(err.Error(), ": "+status.Of(err).Error(), "", 1)
}

// Passes reports whether the reason why there is no path may pass.
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
