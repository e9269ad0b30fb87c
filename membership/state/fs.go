package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// An FS is the file operations that state needs. [OS] is the real one; tests bring
// others that fail, fill up or lose data that was not synced.
type FS interface {
	// MakeDir makes a directory and its parents, or takes an existing one,
	// and leaves it with mode 0700.
	MakeDir(dir string) error
	// List returns the names in a directory, in any order.
	List(dir string) ([]string, error)
	// ReadFile returns a file's content, or an error if it has more than
	// limit bytes.
	ReadFile(path string, limit int64) ([]byte, error)
	// WriteFile creates or replaces a file with mode 0600 and syncs its
	// content. After an error the file may have any content.
	WriteFile(path string, b []byte) error
	// Rename replaces newPath by oldPath at once.
	Rename(oldPath, newPath string) error
	// Remove removes a file.
	Remove(path string) error
	// SyncDir makes earlier changes of names in dir last.
	SyncDir(dir string) error
	// Look returns why nothing can be written below dir now, as far as that
	// can be seen without writing: the file system is full or read-only.
	Look(dir string) error
	// Lock takes an exclusive lock that ends with the process, or returns an
	// error that wraps [ErrLocked].
	Lock(path string) (io.Closer, error)
}

// OS is the FS of the operating system.
type OS struct {
	// Faults has the step between a write and its sync; nil: none.
	Faults *failpoint.Node
}

// MakeDir implements [FS].
func (OS) MakeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm() == 0o700 {
		return nil
	}
	return os.Chmod(dir, 0o700)
}

// List implements [FS].
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// ReadFile implements [FS].
func (OS) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, damaged("more than %d bytes", limit)
	}
	return b, nil
}

// WriteFile implements [FS].
func (o OS) WriteFile(path string, b []byte) error {
	// O_NOFOLLOW: the name is ours, a link there is not.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = f.Chmod(0o600) // it may have existed with another mode
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = o.Faults.Hit(failpoint.FileWritten)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Rename implements [FS].
func (OS) Rename(oldPath, newPath string) error { return os.Rename(oldPath, newPath) }

// Remove implements [FS].
func (OS) Remove(path string) error { return os.Remove(path) }

// SyncDir implements [FS].
func (OS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// minRoom is the space below which a file system counts as full, in bytes: a
// file is written beside the one that it replaces.
const minRoom = 16 << 10

// readOnlyMount is the flag of statfs(2) for a read-only mount.
const readOnlyMount = 1

// Look implements [FS].
func (OS) Look(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return err
	}
	switch {
	case st.Flags&readOnlyMount != 0:
		return syscall.EROFS
	case st.Blocks > 0 && uint64(st.Bavail)*uint64(st.Bsize) < minRoom: // without Blocks it has no bound
		return syscall.ENOSPC
	}
	return nil
}

// Lock implements [FS]. The file holds the owner's process ID, for the error of
// the next one; the lock is the kernel's and ends with the descriptor.
func (OS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		// A full disk must not keep a node from starting: the process ID
		// is a courtesy.
		if f.Truncate(0) == nil {
			_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
		}
		return f, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w%s", ErrLocked, lockOwner(f))
	}
	return nil, errors.Join(err, f.Close())
}

// lockOwner returns " (process N)" if the lock file names one.
func lockOwner(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 20))
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return ""
	}
	return " (process " + pid + ")"
}

// tmpSuffix ends the names of files that are being written.
const tmpSuffix = ".tmp"

// writeAtomic replaces a file so that a crash leaves the old content or the
// new, and returns once the new one lasts. After an error the old content is
// still there, or (if only the last sync failed) the new one is.
func writeAtomic(fsys FS, path string, b []byte) error {
	tmp := path + tmpSuffix
	if err := fsys.WriteFile(tmp, b); err != nil {
		// Free the space that a part of it took; the first error counts.
		_ = fsys.Remove(tmp)
		return writeError(path, err)
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return writeError(path, err)
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return writeError(path, err)
	}
	return nil
}

// removeTemporary removes files that a crash left half written.
func removeTemporary(fsys FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, tmpSuffix) {
			continue
		}
		if err := fsys.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
