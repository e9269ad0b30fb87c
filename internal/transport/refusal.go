package transport

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/status"
)

// refusals are the codes with which the sessions of refused links close.
var refusals = [...]struct {
	why  status.Code
	code uint64
}{
	{status.Reset, CodeFenced},
	{status.NoDevice, CodeIDMismatch},
	{status.Access, CodeWrongCluster},
	{status.IsConn, CodeDuplicate},
	{status.Version, CodeVersion},
}

// RefusalCode returns the code with which a session closes whose link is refused for err.
func RefusalCode(err error) uint64 {
	why := status.Of(err)
	for _, r := range refusals {
		if r.why == why {
			return r.code
		}
	}
	return CodeProtocol
}

// Refusal returns why the peer has refused the link, nil if it has not: e then has more.
func (e *CloseError) Refusal() error {
	for _, r := range refusals {
		if e.Remote && e.Code == r.code {
			return fmt.Errorf("%w: refused by peer: %s", r.why, e.Reason)
		}
	}
	return nil
}
