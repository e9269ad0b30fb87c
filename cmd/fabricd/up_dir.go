package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// An upDir is the directory of a cluster. At most one process uses it.
type upDir struct {
	path string
	temp bool
	lock *os.File
}

// maxSocket is how long the path of a Unix socket may be, in bytes.
const maxSocket = 107

// openUpDir makes the directory at path, if it is missing, or a temporary one if
// path is empty, and locks it.
func openUpDir(path string) (d *upDir, err error) {
	d = &upDir{temp: path == ""}
	if d.temp {
		d.path, err = os.MkdirTemp("", "fabricd-up-")
	} else {
		d.path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, err
	}
	err = roomForSockets(d.path)
	if err == nil {
		err = os.MkdirAll(d.path, 0o700)
	}
	if err == nil && !d.temp {
		err = ownOrEmpty(d.path)
	}
	if err == nil {
		err = d.use()
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// roomForSockets fails if the paths of a cluster's sockets in dir would be too long.
func roomForSockets(dir string) error {
	longest := filepath.Join(dir, fmt.Sprintf("node-%d", upMaxNodes-1), "admin.sock")
	if over := len(longest) - maxSocket; over > 0 {
		return usagef("dir: %q is %d bytes too long: the path of a socket in it may have %d; --dir names another", dir, over, maxSocket)
	}
	return nil
}

// upLock is the file that up makes first in its directory.
const upLock = "lock"

// ownOrEmpty fails if the directory holds something and is not one of up's own.
func ownOrEmpty(dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, own := range []string{upLock, "host", "node-1"} {
		if _, err := os.Lstat(filepath.Join(dir, own)); err == nil {
			return nil
		}
	}
	return usagef("dir: %q holds other files; want an empty or new directory, or one that up has made", dir)
}

// use locks the directory.
func (d *upDir) use() (err error) {
	if d.lock, err = os.OpenFile(filepath.Join(d.path, upLock), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	// The lock ends with this process, whatever ends that.
	err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("a cluster runs in %s already; stop that one first, or use another --dir", d.path)
	}
	return err
}

// close removes a temporary directory, and lets another process use one that stays.
func (d *upDir) close() (err error) {
	if d.temp {
		err = os.RemoveAll(d.path)
	}
	if d.lock != nil {
		d.lock.Close()
	}
	return err
}
