//go:build !portable

package shm

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// Absent returns why processes of this system cannot share memory; nil: they can.
func Absent() error { return nil }

const (
	closeOnExec = unix.MSG_CMSG_CLOEXEC // of descriptors that are received
	hungUp      = unix.POLLRDHUP        // the peer has shut down writing
)

// socketPair returns two Unix sockets that are connected, non-blocking and closed on exec.
func socketPair(kind int, name string) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fail("socketpair", err, status.NoMemory)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// unread returns how many bytes wait at a socket.
func unread(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.SIOCINQ) }

// peerCred returns the credentials of a Unix socket's peer.
func peerCred(fd int) (Cred, error) {
	u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Cred{}, err
	}
	return Cred{PID: u.Pid, UID: u.Uid, GID: u.Gid}, nil
}

// readOnly reports whether this process's mount of dir is read-only.
func readOnly(dir string) (bool, error) {
	var mount unix.Statfs_t
	err := unix.Statfs(dir, &mount)
	return mount.Flags&unix.ST_RDONLY != 0, err
}
