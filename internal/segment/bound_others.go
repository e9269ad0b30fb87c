//go:build !linux

package segment

import "syscall"

// Bound leaves the kernel's default.
func Bound(syscall.RawConn, int) {}
