package shm

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// Renew gives the region, which [Create] has made, fresh pages with the bytes of the
// old ones, at the same addresses: other processes that have the old memory share
// nothing with this one any more. The descriptor is another one afterwards. After an
// error, status.NoMemory, everything is as before.
//
// Stores of other goroutines during the call may be lost. The caller keeps them from
// calling File.
func (r *Region) Renew(name string) error {
	if r.file == nil {
		return status.Invalid
	}
	if err := fitsHere(r.Len()); err != nil {
		return err
	}
	f, err := memfd(name, r.Len())
	if err != nil {
		return err
	}
	if err = fill(f, r.mem); err == nil {
		err = replace(f, r.mem)
	}
	if err != nil {
		f.Close()
		return fail("move memory to fresh pages", err, status.NoMemory)
	}
	r.file.Close()
	r.file = f
	return nil
}

// fill writes p, memory of a region, to the beginning of f.
func fill(f *os.File, p []byte) error {
	return withDescriptor(f, func(fd int) error {
		for off := 0; off < len(p); {
			n, err := unix.Pwrite(fd, p[off:], int64(off))
			switch {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return err
			case n == 0:
				return io.ErrShortWrite
			}
			off += max(n, 0)
		}
		return nil
	})
}
