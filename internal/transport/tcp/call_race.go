//go:build linux && race

package tcp

import "syscall"

// receive, glimpse and send are read and write, which say to the race detector what they do.
func receive(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func glimpse(fd uintptr, p []byte, most int) (n int, err error) {
	for i := 1; ; i++ {
		if n, err = syscall.Read(int(fd), p); err != syscall.EAGAIN || i >= most {
			return n, err
		}
	}
}

func send(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
