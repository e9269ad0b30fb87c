package conformance

import (
	"regexp"
	"slices"
	"strings"
)

// header lists the errors that SCIF's header for user programs (scif.h of MPSS 4)
// documents for each call. Each pair of a call and an error needs a row, or a line
// among the rests with the reason that it has none.
var header = map[string]string{
	"open":         "ENOMEM ENXIO",
	"bind":         "EACCES EBADF EINVAL EISCONN ENOSPC ENOTTY",
	"listen":       "EBADF EINVAL EISCONN ENOTTY",
	"connect":      "EBADF ECONNREFUSED EINTR EINVAL EISCONN ENOBUFS ENODEV ENOSPC ENOTTY EOPNOTSUPP",
	"accept":       "EAGAIN EBADF EINTR EINVAL ENOBUFS ENODEV ENOENT ENOMEM ENOTTY",
	"close":        "EBADF EINVAL",
	"send":         "EBADF ECONNRESET EFAULT EINTR EINVAL ENODEV ENOMEM ENOTCONN ENOTTY",
	"recv":         "EAGAIN EBADF ECONNRESET EFAULT EINTR EINVAL ENODEV ENOMEM ENOTCONN ENOTTY",
	"poll":         "EFAULT EINTR EINVAL ENOMEM",
	"get_fd":       "EINVAL",
	"get_nodeIDs":  "EFAULT",
	"register":     "EADDRINUSE EAGAIN EBADF ECONNRESET EFAULT EINVAL ENODEV ENOMEM ENOTCONN ENOTTY",
	"unregister":   "EBADF ECONNRESET EINVAL ENODEV ENOTCONN ENOTTY ENXIO",
	"mmap":         "EACCES EBADF ECONNRESET EINVAL ENODEV ENOMEM ENOTCONN ENOTTY ENXIO",
	"munmap":       "EINVAL",
	"readfrom":     "EACCES EBADF ECONNRESET EINVAL ENODEV ENOTCONN ENOTTY ENXIO",
	"writeto":      "EACCES EBADF ECONNRESET EINVAL ENODEV ENOTCONN ENOTTY ENXIO",
	"vreadfrom":    "EACCES EBADF ECONNRESET EFAULT EINVAL ENODEV ENOTCONN ENOTTY ENXIO EPERM",
	"vwriteto":     "EACCES EBADF ECONNRESET EFAULT EINVAL ENODEV ENOTCONN ENOTTY ENXIO EPERM",
	"fence_mark":   "EBADF ECONNRESET EINVAL ENODEV ENOMEM ENOTCONN ENOTTY",
	"fence_wait":   "EBADF ECONNRESET EINVAL ENODEV ENOMEM ENOTCONN ENOTTY",
	"fence_signal": "EBADF ECONNRESET EINVAL ENODEV ENOTCONN ENOTTY ENXIO",
}

// errnos finds the errors in the result of a row.
var errnos = regexp.MustCompile(`\bE[A-Z]{3,}\b`)

// A verdict is the result of a row, or of a pair of the header.
type verdict int

const (
	holds        verdict = iota
	missing              // SCIF has it and fabricd does not
	inapplicable         // a rest has the reason why no row is possible
	broken               // a row of it fails
	unjudged             // it has neither a row nor a reason
)

// A count is the number of rows or pairs with each verdict.
type count [unjudged + 1]int

func (n count) all() (sum int) {
	for _, of := range n {
		sum += of
	}
	return sum
}

func (n count) plus(o count) count {
	for v, of := range o {
		n[v] += of
	}
	return n
}

// judge returns the verdict on the pair of call and errno when the rows in failed
// do. A row that holds outranks a row of a missing feature, and any row outranks
// a reason.
func judge(call, errno string, failed map[string]bool) verdict {
	v := unjudged
	for _, r := range rests {
		if r.call == call && gives(r.name, errno) {
			v = inapplicable
		}
	}
	for _, r := range table() {
		switch {
		case r.call != call || !gives(r.name, errno):
		case r.ending != nil && r.ending.own: // the header is about the peer's node
		case failed[r.id()]:
			return broken
		case r.instead == "":
			v = holds
		case v != holds:
			v = missing
		}
	}
	return v
}

// gives reports whether errno is in the result of a row with that name.
func gives(name, errno string) bool {
	_, result, _ := strings.Cut(name, "=")
	return slices.Contains(errnos.FindAllString(result, -1), errno)
}

// judgePairs counts the pairs of one call.
func judgePairs(call string, failed map[string]bool) (n count) {
	for _, errno := range strings.Fields(header[call]) {
		n[judge(call, errno, failed)]++
	}
	return n
}
