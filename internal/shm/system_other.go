//go:build !linux || portable

package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// This file serves systems without memfds and packet sockets: memory of this process, for
// a node in it. No other process has a descriptor of that memory, so it needs no seals.

// errAbsent is the error of sharing with another process.
var errAbsent = fmt.Errorf("shared memory is not on this system: %w", status.NotSupp)

// Absent returns why processes of this system cannot share memory; nil: they can.
func Absent() error { return errAbsent }

const closeOnExec, hungUp = 0, 0

// memfd returns a file without a name that has size bytes, and room for all of them.
func memfd(name string, size int64) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err != nil {
		return nil, fail("make memory", err, status.NoMemory)
	}
	err = os.Remove(f.Name())
	zeros := make([]byte, min(size, 1<<20))
	for done := int64(0); done < size && err == nil; done += int64(len(zeros)) {
		_, err = f.Write(zeros[:min(size-done, int64(len(zeros)))])
	}
	if err != nil {
		f.Close()
		return nil, fail(fmt.Sprintf("allocate %d bytes of memory", size), err, status.NoMemory)
	}
	return f, nil
}

func check(fd int, want, limit int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w: %w", status.Fault, err)
	}
	return checkSize(st.Size, st.Size/512, want, limit)
}

// Shared, Adopt, SealWriting and SealSeals are of memory that processes share.
func Shared(string, int64) (*os.File, error) { return nil, errAbsent }

// Adopt is as Shared. It takes f.
func Adopt(f *os.File, _ int64) (*Region, error) {
	f.Close()
	return nil, errAbsent
}

// SealWriting is as Shared.
func SealWriting(*os.File) error { return errAbsent }

// SealSeals is as Shared.
func SealSeals(*os.File) error { return errAbsent }

func socketPair(int, string) (a, b *os.File, err error) { return nil, nil, errAbsent }
func unread(int) (int, error)                           { return 0, errAbsent }
func peerCred(int) (Cred, error)                        { return Cred{}, errAbsent }
func readOnly(string) (bool, error)                     { return false, errAbsent }
