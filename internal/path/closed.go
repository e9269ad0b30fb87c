package path

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// The functions below use the socket of a closed path, as Held.Take has returned it. Its
// application may still have it, and may make it block: no call relies on that it does not.

// SendRest writes the rest that End has returned, and ends the outgoing direction. f's
// deadlines bound it. An application that has ended it itself has written the rest.
func SendRest(f *os.File, rest []byte) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	// Until all is sent the socket's close is a reset, also one by the end of this process.
	setLinger(raw.Control, unix.Linger{Onoff: 1})
	for len(rest) > 0 && err == nil {
		werr := raw.Write(func(fd uintptr) bool {
			var n int
			n, err = unix.SendmsgN(int(fd), rest, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			rest = rest[max(n, 0):]
			return err != unix.EAGAIN
		})
		err = errors.Join(werr, err)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	setLinger(raw.Control, unix.Linger{})
	shutdown(raw.Control, unix.SHUT_WR)
	return nil
}

// setLinger fails only where the socket has ended.
func setLinger(control func(func(fd uintptr)) error, l unix.Linger) {
	_ = control(func(fd uintptr) { _ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &l) })
}

// Discard reads and drops bytes until an error, as at the end or at f's deadline; more is
// called after each read and ends it with false.
func Discard(f *os.File, more func() bool) {
	raw, err := f.SyscallConn()
	var buf [4 << 10]byte
	for n := 1; err == nil && n > 0 && more(); {
		rerr := raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			return err != unix.EAGAIN
		})
		err = errors.Join(rerr, err)
	}
}

// Reset ends f's connection at once, for every process that has it: the peer must not take
// the bytes that have arrived for all.
func Reset(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	setLinger(raw.Control, unix.Linger{Onoff: 1})
	_ = raw.Control(disconnect) // it fails only where the socket has ended
}
