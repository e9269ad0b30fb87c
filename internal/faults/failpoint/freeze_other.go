//go:build !linux

package failpoint

import (
	"errors"
	"syscall"
	"time"
)

// sleepUnseen would have to hold a processor that the scheduler does not take back, which
// only Linux lets a program do.
func sleepUnseen(time.Duration) error {
	return errors.New("freeze: a process of this system cannot stand still by itself")
}

// exit ends the process at once. It runs nothing, unlike os.Exit.
func exit() { syscall.Exit(128 + int(syscall.SIGKILL)) }
