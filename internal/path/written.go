package path

import (
	"errors"
	"os"
)

// A Written counts the bytes that all processes together have written to a socket, for
// the node that has a duplicate of it: the bytes that the kernel counts as
// acknowledged by the peer, and those that are not.
type Written struct {
	s    *Held
	base uint64
}

var errUncounted = errors.New("the kernel does not count what is written to a socket")

// CountWritten begins to count the bytes written to s, to which the caller has written
// before bytes.
func CountWritten(s *Held, before uint64) (*Written, error) {
	w := &Written{s: s}
	n, err := w.Bytes()
	switch {
	case err != nil:
		return nil, err
	case n != before && n != before+1: // a kernel may count the SYN of the side that has dialed
		return nil, errUncounted
	}
	w.base = n
	return w, nil
}

// Unacknowledged returns how many bytes of those written to a socket, its end included, the
// peer's kernel has not acknowledged; 0 if the socket has ended.
func Unacknowledged(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	// It fails only when the socket is closed.
	_ = raw.Control(func(fd uintptr) {
		info, err := infoOf(fd)
		if err == nil && info.State != ended {
			n, _ = unacknowledged(fd)
		}
	})
	return n
}

// countTries bounds the tries to read two figures of the kernel that belong together:
// an acknowledgement comes in between seldom.
const countTries = 1000

// Bytes returns how many bytes have been written since CountWritten. Those of a write
// that has returned are counted.
func (w *Written) Bytes() (n uint64, err error) {
	if cerr := w.s.control(func(fd uintptr) { n, err = written(fd) }); cerr != nil {
		return 0, cerr
	}
	return n - w.base, err
}

func written(fd uintptr) (uint64, error) {
	for range countTries {
		before, err := infoOf(fd)
		queued, qerr := unacknowledged(fd)
		after, aerr := infoOf(fd)
		if err := errors.Join(err, qerr, aerr); err != nil {
			return 0, err
		}
		if before.Bytes_acked == after.Bytes_acked {
			return after.Bytes_acked + uint64(queued), nil
		}
	}
	return 0, errUncounted
}
