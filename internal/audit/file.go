package audit

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// MaxFile bounds a file in bytes. If a line would exceed it, the file is renamed to PATH.1, which
// replaces the previous one, and a new file begins.
const MaxFile = 16 << 20

// A File is the file of an audit log: appended to, readable by this user only,
// and rotated once.
type File struct {
	path string
	max  int64

	mu   sync.Mutex // guards the fields below
	file *os.File   // nil after a rotation that failed half-way, and after Close
	size int64
	shut bool
}

// OpenFile opens the file at path, or creates it. An existing one must be a regular file, not a
// symbolic link.
func OpenFile(path string) (*File, error) {
	f := &File{path: path, max: MaxFile}
	return f, f.open()
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.path, Err: fmt.Errorf("not a regular file")}
	}
	if err == nil && info.Mode().Perm() != 0o600 {
		err = file.Chmod(0o600)
	}
	if err != nil {
		file.Close()
		return err
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write appends lines, in a new file if they do not fit.
func (f *File) Write(lines []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return 0, fs.ErrClosed
	}
	if f.file != nil && f.size > 0 && f.size+int64(len(lines)) > f.max {
		if err := f.rotate(); err != nil {
			return 0, err
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(lines)
	f.size += int64(n)
	if err != nil && n > 0 {
		// Half a line would spoil the next one.
		if f.file.Truncate(f.size-int64(n)) == nil {
			f.size -= int64(n)
		}
	}
	return n, err
}

// rotate closes and renames the file.
func (f *File) rotate() error {
	err := f.file.Close()
	f.file = nil
	if renamed := os.Rename(f.path, f.path+".1"); renamed != nil {
		return renamed
	}
	return err
}

// Close flushes the file to the disk and closes it.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut = true
	if f.file == nil {
		return nil
	}
	err := f.file.Sync()
	if closed := f.file.Close(); err == nil {
		err = closed
	}
	f.file = nil
	return err
}
