package state

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Causes of refusals, for [errors.Is].
var (
	// ErrDamaged means that a file differs from the content written to it.
	ErrDamaged = errors.New("damaged")
	// ErrNewer means that a file was written by a later version of fabricd.
	ErrNewer = errors.New("written by a newer fabricd")
	// ErrNotInitialized means that a directory holds no state.
	ErrNotInitialized = errors.New("not initialized")
	// ErrInitialized means that a directory already holds a node's state.
	ErrInitialized = errors.New("already initialized")
	// ErrLocked means that another process uses the directory.
	ErrLocked = errors.New("in use by another fabricd")
	// ErrOtherCluster means that the state belongs to another cluster.
	ErrOtherCluster = errors.New("belongs to another cluster")
	// ErrOldTerm means that a term is lower than one accepted before.
	ErrOldTerm = errors.New("term is over")
	// ErrOldGeneration means that a lease would go back in time.
	ErrOldGeneration = errors.New("generation would go back")
	// ErrRole means that a call is not for a node of this role.
	ErrRole = errors.New("wrong role")
	// ErrClosed means that the state was closed.
	ErrClosed = errors.New("state directory is closed")
)

// A FileError names the wrong file, the reason, and the remedy.
type FileError struct {
	Path   string
	Advice string
	Err    error
}

// Error returns one line.
func (e *FileError) Error() string {
	return fmt.Sprintf("state file %s: %v: %s", e.Path, e.Err, e.Advice)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// damaged is an error about the content of a file.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// writeError adds the meaning of the usual reasons of a failed write.
func writeError(path string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = " (nothing was lost; free space and try again)"
	case errors.Is(err, syscall.EROFS):
		hint = " (the state directory must be writable)"
	case errors.Is(err, fs.ErrPermission):
		hint = " (the state directory must belong to the user that runs fabricd)"
	}
	return fmt.Errorf("write state file %s: %w%s", path, err, hint)
}
