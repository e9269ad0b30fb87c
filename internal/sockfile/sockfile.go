// Package sockfile sets the rights of Unix sockets.
package sockfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// SetRights sets the group, unless it is -1, and the mode of the socket at path. The change stays
// in the directory of path, so that the directory's owner cannot lead it to a file elsewhere by a
// link.
func SetRights(path string, mode fs.FileMode, gid int) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(path)
	info, err := dir.Lstat(name)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = &fs.PathError{Op: "chmod", Path: path, Err: errors.New("the socket has been replaced by another file")}
	}
	if err == nil && gid >= 0 {
		err = dir.Lchown(name, -1, gid)
	}
	if err != nil {
		return err
	}
	return dir.Chmod(name, mode)
}
