package shm

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fabricd/fabricd/internal/status"
)

// CheckServer reports whether the process that serves the Unix socket at path may: it
// is root, of this process's user or of the owner of the socket's directory, or no other
// user can put a socket there, because the directory is not writable for all users or
// this process's mount of it is read-only. The error is status.Access.
func CheckServer(c *net.UnixConn, path string) error {
	cred, err := PeerCred(c)
	if err != nil {
		return err
	}
	own := uint32(os.Getuid())
	if cred.UID == 0 || cred.UID == own {
		return nil
	}
	refused := fmt.Errorf("user %d serves %s, where every user may put a socket: want root, this user or the directory's owner: %w", cred.UID, path, status.Access)
	if strings.HasPrefix(path, "@") { // it has no directory
		return refused
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return fail("stat "+dir, err, status.Access)
	}
	closed, err := readOnly(dir)
	if err != nil {
		return fail("statfs "+dir, err, status.Access)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && mayServe(cred.UID, st.Uid, info.Mode(), closed) {
		return nil
	}
	return refused
}

// mayServe is the part of CheckServer about the directory of a socket.
func mayServe(server, owner uint32, mode fs.FileMode, readOnly bool) bool {
	return server == owner || readOnly || mode.Perm()&0o002 == 0
}
