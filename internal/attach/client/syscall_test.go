package client

import (
	"os"
	"syscall"
	"testing"
)

// rights returns a control message with n copies of a descriptor.
func rights(t testing.TB, n int) []byte {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fds[i] = 0 // standard input is always open
	}
	return syscall.UnixRights(fds...)
}

// descriptors counts this process's open descriptors.
func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// punch gives the first n bytes of f's pages back.
func punch(t testing.TB, f *os.File, n int64) {
	t.Helper()
	const keepSize, punchHole = 1, 2
	if err := syscall.Fallocate(int(f.Fd()), keepSize|punchHole, 0, n); err != nil {
		t.Fatal(err)
	}
}
