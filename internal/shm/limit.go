package shm

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// limits are those that a system call of this package may meet, by the error in
// which it ends. Those of memory cgroups end in none: see fits.
var limits = []struct {
	err      error
	resource int
	text     string // has the limit's value
}{
	{unix.EMFILE, unix.RLIMIT_NOFILE, "RLIMIT_NOFILE: this process may have %d descriptors"},
	{unix.EFBIG, unix.RLIMIT_FSIZE, "RLIMIT_FSIZE: this process may make files and memory of %d bytes"},
	{unix.ENOMEM, unix.RLIMIT_AS, "RLIMIT_AS: this process may have an address space of %d bytes"},
}

// limitOf names the limit that made a system call fail with err, for people;
// empty if err is of no limit, or the limit is not set.
func limitOf(err error) string {
	for _, l := range limits {
		var now unix.Rlimit
		if errors.Is(err, l.err) && unix.Getrlimit(l.resource, &now) == nil && now.Cur != unix.RLIM_INFINITY {
			return fmt.Sprintf(l.text, now.Cur)
		}
	}
	if errors.Is(err, unix.ENFILE) {
		if most, ok := readNumber("/proc/sys/fs/file-max"); ok {
			return fmt.Sprintf("fs.file-max: all processes may have %d files", most)
		}
	}
	return ""
}

// Descriptors returns how many descriptors this process may have (RLIMIT_NOFILE).
func Descriptors() int64 {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || now.Cur > 1<<30 {
		return 1 << 30
	}
	return int64(now.Cur)
}

// Exhausted reports whether err means that the process or machine has run
// out of a resource.
func Exhausted(err error) bool {
	out := []error{unix.ENOMEM, unix.ENOSPC, unix.EMFILE, unix.ENFILE, unix.EDQUOT, unix.EFBIG}
	return slices.ContainsFunc(out, func(e error) bool { return errors.Is(err, e) })
}
