package shm

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Receiver receives packets from one socket. It reuses its fields for each packet,
// and is for one caller at a time. The standard library's ReadMsgUnix allocates the
// sender's address for every packet.
type Receiver struct {
	raw    syscall.RawConn
	broken error // why there is no raw
	read   func(fd uintptr) bool
	head   unix.Msghdr
	bytes  unix.Iovec
	rights []byte
	n      int
	errno  syscall.Errno
}

// NewReceiver returns a Receiver from c, which stays the caller's.
func NewReceiver(c *net.UnixConn) *Receiver {
	r := new(Receiver)
	r.raw, r.broken = c.SyscallConn()
	// The buffer has the length of one descriptor and not its space, which
	// padding makes large enough for two.
	r.rights = make([]byte, unix.CmsgLen(4))
	r.head.Iov, r.head.Iovlen = &r.bytes, 1
	r.head.Control = &r.rights[0]
	r.read = func(fd uintptr) bool {
		for {
			r.head.SetControllen(len(r.rights))
			n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.head)), closeOnExec|unix.MSG_DONTWAIT)
			if r.n, r.errno = int(n), errno; errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	}
	return r
}

// recv receives one packet into p, which has room for at least a byte. rights are
// the Receiver's until the next call. The end is io.EOF: no packet is empty.
func (r *Receiver) recv(p []byte) (n int, rights []byte, flags int, err error) {
	if r.broken != nil {
		return 0, nil, 0, r.broken
	}
	r.bytes.Base = &p[0]
	r.bytes.SetLen(len(p))
	err = r.raw.Read(r.read)
	r.bytes.Base = nil
	switch {
	case err != nil:
		return 0, nil, 0, err
	case r.errno != 0:
		return 0, nil, 0, r.errno
	case r.n == 0:
		return 0, nil, 0, io.EOF
	}
	return r.n, r.rights[:r.head.Controllen], int(r.head.Flags), nil
}
