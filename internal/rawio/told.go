//go:build !linux || race

package rawio

import "syscall"

// The race detector learns of the order of two goroutines from calls through package syscall.

func rawRead(fd int, p []byte) (int, error) { return syscall.Read(fd, p) }

func rawWrite(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }
