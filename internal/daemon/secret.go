package daemon

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkSecret refuses a file with a secret that other users of the machine can
// read, or change. A file that does not exist or is no regular one is left to the
// code that reads it. note is for the log: a file on a read-only mount, as containers
// get their secrets, has the mode that the mount gives it.
func checkSecret(field, path string) (note string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	note, wrong := judgeSecret(info.Mode().Perm(), onReadOnlyMount(path))
	if wrong != "" {
		return "", problem(field, path, fmt.Sprintf("%s (mode %04o): `chmod 600 %s`", wrong, info.Mode().Perm(), path), fs.ErrPermission)
	}
	return note, nil
}

// judgeSecret returns the error in the mode of a file with a secret, or a note about it.
func judgeSecret(mode fs.FileMode, readOnly bool) (note, wrong string) {
	switch {
	case mode&0o022 != 0 && !readOnly:
		return "", "holds a secret, and other users may change it"
	case mode&0o077 != 0 && !readOnly:
		return "", "holds a secret, and other users may read it"
	case mode&0o007 != 0:
		return fmt.Sprintf("the file holds a secret that all users of this container or machine may read (mode %04o, on a read-only mount)", mode), ""
	}
	return "", ""
}

// readOnlyFlag is ST_RDONLY of statfs(2).
const readOnlyFlag = 1

// onReadOnlyMount reports whether the file is on a mount that is read-only, as
// Kubernetes and Docker mount secrets.
func onReadOnlyMount(path string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(path, &s) == nil && s.Flags&readOnlyFlag != 0
}

// noteSecret checks a file with a secret and logs the note about it.
func (d *Daemon) noteSecret(field, path string) error {
	note, err := checkSecret(field, path)
	if note != "" {
		d.log.Warn().Str("op", "config").Str("setting", field).Str("file", path).Msg(note)
	}
	return err
}
