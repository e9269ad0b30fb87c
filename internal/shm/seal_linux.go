//go:build !portable

package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// SealWriting makes memory that can be written only through the mappings that are
// there: no later mapping, write or reopened descriptor can (F_SEAL_FUTURE_WRITE,
// Linux 5.1), whatever the user of the holder. f is open for writing. It is
// status.NotSupp where the memory takes no more seals.
func SealWriting(f *os.File) error { return addSeals(f, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL) }

// SealSeals makes memory accept no more seals: a process that gets it for writing
// cannot then seal it against the writing of others.
func SealSeals(f *os.File) error { return addSeals(f, unix.F_SEAL_SEAL) }

// addSeals adds want. All of want may be set already.
func addSeals(f *os.File, want int) error {
	err := withDescriptor(f, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, want)
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		if got, gerr := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); gerr == nil && got&want == want {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("seal memory: %w: %w", status.NotSupp, err)
	}
	return nil
}
