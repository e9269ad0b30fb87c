// Package status defines the codes that report failure, on the wire and in local calls alike. Each
// code corresponds to one errno of SCIF's contract.
package status

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// A Code is the reason why an operation failed. Its number is part of the wire format and of the
// attach protocol: append new codes, never renumber or reuse one.
type Code uint16

const (
	OK         Code = iota
	Invalid         // EINVAL: an argument, or the endpoint's state, does not allow the call
	Access          // EACCES: privilege or window protection
	InUse           // EADDRINUSE: the offset range is taken
	Again           // EAGAIN: the call would block
	Refused         // ECONNREFUSED: no listener, or no accept in time
	Reset           // ECONNRESET: the peer closed or its node was lost
	NotConn         // ENOTCONN
	IsConn          // EISCONN
	InProgress      // EINPROGRESS: a non-blocking connect has not ended
	NoDevice        // ENODEV: no such node, or it is lost
	NoAddress       // ENXIO: the range is not registered
	NoSpace         // ENOSPC: no free port
	NoMemory        // ENOMEM: a quota or memory is exhausted
	NotSupp         // EOPNOTSUPP
	Intr            // EINTR: ended by a close in another goroutine
	BadFD           // EBADF: the endpoint is closed
	Fault           // EFAULT: the memory cannot be used
	NoBufs          // ENOBUFS: a queue is full
	Protocol        // EPROTO: the peer broke the protocol; the connection is reset
	TimedOut        // ETIMEDOUT
	Version         // EPROTONOSUPPORT: no common protocol version
	Canceled        // ECANCELED: the caller canceled the call
	Busy            // ECONNREFUSED: the listener's backlog is full

	codes // number of codes
)

var table = [codes]struct {
	text  string
	errno syscall.Errno
}{
	OK:         {"ok", 0},
	Invalid:    {"invalid argument", syscall.EINVAL},
	Access:     {"permission denied", syscall.EACCES},
	InUse:      {"offset range already in use", syscall.EADDRINUSE},
	Again:      {"resource temporarily unavailable", syscall.EAGAIN},
	Refused:    {"connection refused", syscall.ECONNREFUSED},
	Reset:      {"connection reset by peer", syscall.ECONNRESET},
	NotConn:    {"endpoint is not connected", syscall.ENOTCONN},
	IsConn:     {"endpoint is already connected or listening", syscall.EISCONN},
	InProgress: {"connect in progress", syscall.EINPROGRESS},
	NoDevice:   {"no such node, or it is not reachable", syscall.ENODEV},
	NoAddress:  {"offset range not registered", syscall.ENXIO},
	NoSpace:    {"no free port", syscall.ENOSPC},
	NoMemory:   {"out of memory or over quota", syscall.ENOMEM},
	NotSupp:    {"operation not supported", syscall.EOPNOTSUPP},
	Intr:       {"interrupted by close", syscall.EINTR},
	BadFD:      {"endpoint is closed", syscall.EBADF},
	Fault:      {"bad memory", syscall.EFAULT},
	NoBufs:     {"queue is full", syscall.ENOBUFS},
	Protocol:   {"protocol violation", syscall.EPROTO},
	TimedOut:   {"timed out", syscall.ETIMEDOUT},
	Version:    {"no common protocol version", syscall.EPROTONOSUPPORT},
	Canceled:   {"canceled", syscall.ECANCELED},
	Busy:       {"connection refused: the listener's backlog is full", syscall.ECONNREFUSED},
}

// Error returns the code's text.
func (c Code) Error() string {
	if c < codes {
		return table[c].text
	}
	return fmt.Sprintf("status %d", uint16(c)) // a newer peer's code
}

// Errno returns the errno of SCIF's contract for the code, EIO for a code that
// this version does not know.
func (c Code) Errno() syscall.Errno {
	if c < codes {
		return table[c].errno
	}
	return syscall.EIO
}

// Is makes errors.Is match a code's errno and the standard library's names.
func (c Code) Is(target error) bool {
	switch target {
	case net.ErrClosed:
		return c == BadFD
	case os.ErrPermission, fs.ErrPermission:
		return c == Access
	case os.ErrDeadlineExceeded:
		return c == TimedOut
	case context.Canceled:
		return c == Canceled
	}
	errno, ok := target.(syscall.Errno)
	return ok && errno == c.Errno() && c != OK
}

// Timeout reports whether the code is a time-out, as in [net.Error].
func (c Code) Timeout() bool { return c == TimedOut || c == Again }

// Of returns the code in err's chain: OK for nil, the code of an errno or of a
// context error, Protocol for anything else.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		for c := range table {
			if table[c].errno == errno {
				return Code(c)
			}
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, net.ErrClosed):
		return BadFD
	}
	return Protocol
}
