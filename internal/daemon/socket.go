package daemon

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/sockfile"
)

// socketOptions are a Unix socket's path and access rights.
type socketOptions struct {
	field   string // the setting, for problems
	network string // "unix" or "unixpacket"
	path    string
	mode    fs.FileMode
	group   string // name or number; empty: the process's own
}

// listenUnix listens on a Unix socket of the kind o.network, which disappears with the listener. A
// socket that a dead fabricd left behind is replaced; one that answers is not.
//
// Between its creation and the change of its mode the socket has the mode that
// the umask leaves. It is not usable by more users then: connecting needs
// write permission, which every customary umask withholds.
func listenUnix(o socketOptions) (*net.UnixListener, error) {
	gid, err := groupID(o.group)
	if err != nil {
		return nil, problem("socket-group", o.group, "no such group on this machine", err)
	}
	if err := shm.Absent(); err != nil && o.network == "unixpacket" {
		return nil, problem(o.field, o.path, "no other process can attach here: "+err.Error(), err)
	}
	if err := os.MkdirAll(filepath.Dir(o.path), 0o750); err != nil {
		return nil, problem(o.field, o.path, "its directory cannot be made: "+cause(err).Error(), err)
	}
	if err := removeStale(o); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix(o.network, &net.UnixAddr{Name: o.path, Net: o.network})
	if err != nil {
		return nil, problem(o.field, o.path, "cannot listen there: "+syscallCause(err).Error(), err)
	}
	if err := sockfile.SetRights(o.path, o.mode, gid); err != nil {
		l.Close()
		return nil, problem(o.field, o.path, "its group and mode cannot be set: "+cause(err).Error(), err)
	}
	return l, nil
}

// removeStale removes a socket without a listener.
func removeStale(o socketOptions) error {
	info, err := os.Lstat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return problem(o.field, o.path, cause(err).Error(), err)
	case info.Mode().Type() != fs.ModeSocket:
		return problem(o.field, o.path, "exists and is not a socket; want a free path", nil)
	}
	c, err := net.Dial(o.network, o.path)
	if err == nil {
		c.Close()
	}
	if err == nil || errors.Is(err, syscall.EPROTOTYPE) { // EPROTOTYPE: a listener of another kind
		return problem(o.field, o.path, "another fabricd listens there; want a free path", nil)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return problem(o.field, o.path, "is in use or not ours: "+syscallCause(err).Error(), err)
	}
	if err := os.Remove(o.path); err != nil {
		return problem(o.field, o.path, "an old socket cannot be removed: "+cause(err).Error(), err)
	}
	return nil
}

// groupID returns the number of a group given by name or number, -1 for "".
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// syscallCause returns the errno in err's chain, or err.
func syscallCause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
