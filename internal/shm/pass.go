package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// Send sends p as one packet with f, if not nil, as its descriptor; f stays the
// caller's. It waits for room until c's write deadline.
func Send(c *net.UnixConn, p []byte, f *os.File) error {
	return withRights(f, func(oob []byte) error {
		_, _, err := c.WriteMsgUnix(p, oob, nil)
		return err
	})
}

// A Sender sends packets on one socket without waiting. It reuses its fields for
// each packet, and is for one caller at a time.
type Sender struct {
	raw    syscall.RawConn
	broken error            // why there is no raw
	send   func(fd uintptr) // sends p and oob, sets err
	p, oob []byte
	err    error
}

// NewSender returns a Sender on c, which stays the caller's.
func NewSender(c *net.UnixConn) *Sender {
	s := new(Sender)
	s.raw, s.broken = c.SyscallConn()
	s.send = func(fd uintptr) { s.err = sendmsg(int(fd), s.p, s.oob) }
	return s
}

// TrySend is Send that returns status.Again instead of waiting.
func (s *Sender) TrySend(p []byte, f *os.File) error {
	if s.broken != nil {
		return s.broken
	}
	if f == nil {
		return s.try(p, nil)
	}
	return withRights(f, func(oob []byte) error { return s.try(p, oob) })
}

func (s *Sender) try(p, oob []byte) error {
	s.p, s.oob = p, oob
	err := s.raw.Control(s.send)
	s.p, s.oob = nil, nil
	switch {
	case err != nil:
		return err
	case errors.Is(s.err, unix.EAGAIN):
		return status.Again
	}
	return s.err
}

func sendmsg(fd int, p, oob []byte) error {
	for {
		_, err := unix.SendmsgN(fd, p, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// withRights calls send with the control message that passes f, nil for none,
// and keeps f open meanwhile.
func withRights(f *os.File, send func(oob []byte) error) error {
	if f == nil {
		return send(nil)
	}
	return withDescriptor(f, func(fd int) error { return send(unix.UnixRights(fd)) })
}

// ErrDescriptorLost reports that a descriptor came with a packet when this process
// could open no more. The receiver is out of descriptors; the sender is not at fault.
var ErrDescriptorLost = fmt.Errorf("no descriptor is left for the one that was passed: %w", status.NoMemory)

// descriptorLost is ErrDescriptorLost with the limit.
func descriptorLost() error {
	if limit := limitOf(unix.EMFILE); limit != "" {
		return fmt.Errorf("%w (%s)", ErrDescriptorLost, limit)
	}
	return ErrDescriptorLost
}

// Recv receives one packet into p and at most one descriptor, which is then the
// caller's and is closed on exec. A packet longer than p, or with more than
// one descriptor, is status.Protocol, and its descriptors are gone. A packet
// whose descriptor found no room in this process is returned without it, with
// ErrDescriptorLost. At the end it returns io.EOF. It waits until the socket's
// read deadline.
func (r *Receiver) Recv(p []byte) (n int, f *os.File, err error) {
	n, rights, flags, err := r.recv(p)
	if err != nil {
		return 0, nil, err
	}
	files, err := parseRights(rights)
	switch {
	case err != nil:
		err = fmt.Errorf("control message: %w: %w", status.Protocol, err)
	case flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) == unix.MSG_CTRUNC && len(files) == 0:
		return n, nil, descriptorLost() // of two that came, one would be here
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("more than one descriptor in a packet: %w", status.Protocol)
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("packet longer than %d bytes: %w", len(p), status.Protocol)
	case len(files) == 1:
		return n, files[0], nil
	case len(files) == 0:
		return n, nil, nil
	default:
		err = fmt.Errorf("%d descriptors in a packet: %w", len(files), status.Protocol)
	}
	for _, f := range files {
		f.Close()
	}
	return 0, nil, err
}

// parseRights takes ownership of all descriptors in a control message, also
// when the message is malformed.
func parseRights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	var bad error
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			bad = err
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, bad
}

// Cred identifies the process at the other end of a Unix socket, as the kernel
// recorded when it connected.
type Cred struct {
	PID      int32
	UID, GID uint32
}

// PeerCred returns the credentials of c's peer (SO_PEERCRED).
func PeerCred(c *net.UnixConn) (Cred, error) {
	var cred Cred
	err := withDescriptor(c, func(fd int) (err error) {
		cred, err = peerCred(fd)
		return err
	})
	if err != nil {
		return Cred{}, fail("SO_PEERCRED", err, status.Access)
	}
	return cred, nil
}
