package ipc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fabricd/fabricd/internal/status"
)

// errNodeGone is the error of calls after the end of the session.
var errNodeGone = fmt.Errorf("the node is gone: %w", status.NoDevice)

// otherGaveUp is what JOINED says of a channel that the other side cannot use. Why
// it cannot, the node knows.
const otherGaveUp = "the other application cannot use its side"

// causeUnheard is that of a connection which nobody could be told of.
const causeUnheard = "its acceptor could not take it"

// reasonOf is an error's text without its code, of which people learn nothing
// beside it.
func reasonOf(err error) string {
	return strings.Replace(err.Error(), ": "+status.Of(err).Error(), "", 1)
}

// passes reports whether the reason why there is no path may pass.
func passes(why error) bool {
	code := status.Of(why)
	return code == status.Again || code == status.NoMemory
}

// coded returns err with code in its chain unless it has one.
func coded(err error, code status.Code) error {
	if _, ok := errors.AsType[status.Code](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", code, err)
}
