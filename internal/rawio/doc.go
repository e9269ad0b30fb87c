// Package rawio reads and writes descriptors that do not block, unseen by the
// scheduler of Go: it takes every other call of the kernel for one that may block, and where
// the process was idle a moment ago each such call wakes the runtime's monitor thread. In a
// process that carries short messages back and forth that was a fifth of its processor time.
package rawio

import "syscall"

// most is how many bytes a call may be about. A longer one delays a stop of all
// goroutines, as by the garbage collector: it is announced to the scheduler.
const most = 64 << 10

// Read reads the bytes at hand into p. An interrupted call begins again. The error is EAGAIN if
// there is nothing.
func Read(fd int, p []byte) (n int, err error) {
	for again := true; again; again = err == syscall.EINTR {
		if len(p) > most {
			n, err = syscall.Read(fd, p)
		} else {
			n, err = rawRead(fd, p)
		}
	}
	return max(n, 0), err
}

// Write writes as many bytes of p as there is room for, as Read reads.
func Write(fd int, p []byte) (n int, err error) {
	for again := true; again; again = err == syscall.EINTR {
		if len(p) > most {
			n, err = syscall.Write(fd, p)
		} else {
			n, err = rawWrite(fd, p)
		}
	}
	return max(n, 0), err
}
