//go:build linux && race

package tcp

import "syscall"

// receive, glimpse and send are read and write, which say to the race detector what they do.
func receive(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func glimpse(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func send(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
