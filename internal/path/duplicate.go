package path

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Duplicate returns a descriptor of its own of s, which the caller closes: what the
// application gets, while the node keeps s to end it.
func Duplicate(s *net.TCPConn) (*os.File, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var derr error
	err = raw.Control(func(old uintptr) { fd, derr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = derr
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "path"), nil
}

// Tune sets what a path's socket needs: small messages go out at once, and an idle one
// asks the peer's kernel for a sign of life once a second, which Silence looks for.
//
// What ends a silent path is its node (driver's watchPaths), which can say why to both
// ends. TCP_USER_TIMEOUT would not do: it also ends a connection whose peer answers and
// only does not read for that time. The kernel ends one by itself much later.
func Tune(s *net.TCPConn) {
	// They fail only where the socket has ended.
	_ = s.SetNoDelay(true)
	_ = s.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 30})
}

// Shutdown ends s for every process that has it, both ways, at once: what has
// arrived can be read, nothing more arrives or goes out.
func Shutdown(s *net.TCPConn) {
	// They fail only where the socket has ended.
	_ = s.CloseRead()
	_ = s.CloseWrite()
}
