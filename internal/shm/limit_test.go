package shm

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// An error of a limit is ENOMEM, keeps its own reason, and names the limit if there
// is one.
func TestErrorsNameTheirLimit(t *testing.T) {
	for errno, c := range map[syscall.Errno]struct {
		code status.Code
		says string
	}{
		syscall.EMFILE: {status.NoMemory, "too many open files (RLIMIT_NOFILE: this process may have "},
		syscall.ENFILE: {status.NoMemory, "too many open files in system (fs.file-max: all processes may have "},
		syscall.ENOSPC: {status.NoMemory, "no space left on device"},
		syscall.EPERM:  {status.NotSupp, "operation not permitted"},
	} {
		err := fail("memfd_create", errno, status.NotSupp)
		if status.Of(err) != c.code || !errors.Is(err, errno) || !strings.HasPrefix(err.Error(), "memfd_create: ") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %v that says %q", errno, err, c.code, c.says)
		}
	}
	if err := descriptorLost(); !errors.Is(err, ErrDescriptorLost) || !errors.Is(err, status.NoMemory) || !strings.Contains(err.Error(), "RLIMIT_NOFILE") {
		t.Errorf("a lost descriptor: %v", err)
	}
}
