package load

import "github.com/fabricd/fabricd/internal/lab/history"

// Returned returns the status of the record of a call that has ended with a [Result]'s
// status. A receive behind the last byte of a peer that has closed in order has
// [history.HowEOF], and its record the errno.
func Returned(status string) string {
	if status == history.HowEOF {
		return "ECONNRESET"
	}
	return status
}
