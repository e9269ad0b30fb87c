package shm

import (
	"fmt"
	"os"

	"github.com/fabricd/fabricd/internal/status"
)

// Check reports whether f, a descriptor of unknown origin, is memory of exactly
// want bytes, at most limit, that can be mapped without a fault from a
// process that means harm: a memfd whose size is sealed and whose pages are
// allocated. The error names the violation, and is status.Fault, or
// status.NoMemory when only the limit is exceeded.
//
// The owner can still give pages back by punching holes. An access then takes
// a fresh page from this process's memory, so limits on the sum of all sizes
// stay needed.
func Check(f *os.File, want, limit int64) error {
	return withDescriptor(f, func(fd int) error { return check(fd, want, limit) })
}

// checkSize judges a size in bytes and its allocation in blocks of 512 bytes.
func checkSize(size, blocks, want, limit int64) error {
	switch {
	case size <= 0:
		return fmt.Errorf("memory is empty: %w", status.Fault)
	case size%PageSize != 0:
		return fmt.Errorf("memory of %d bytes is not whole pages of %d: %w", size, PageSize, status.Fault)
	case size > MaxSize || size > limit:
		return fmt.Errorf("memory of %d bytes is over the limit of %d: %w", size, limit, status.NoMemory)
	case size != want:
		return fmt.Errorf("memory has %d bytes, announced were %d: %w", size, want, status.Fault)
	case blocks < size/512:
		return fmt.Errorf("memory of %d bytes has only %d allocated; its owner must populate it: %w",
			size, blocks*512, status.Fault)
	}
	return nil
}
