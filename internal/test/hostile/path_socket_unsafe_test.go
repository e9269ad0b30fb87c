//go:build linux

package hostile

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// TestTheSocketOfAPathReachesNothingElse: an application disconnects the sockets that its node
// has handed it, and connects them to what the node's network reaches, or listens. It gets no
// connection.
func TestTheSocketOfAPathReachesNothingElse(t *testing.T) {
	c := newCluster(t)
	member := c.start(c.node("member"))
	l, err := dialApp(t, member.Status().Socket).Open()
	if err != nil {
		t.Fatal(err)
	}
	port, err := l.Bind(0)
	if err = errors.Join(err, l.Listen(1)); err != nil {
		t.Fatal(err)
	}
	bad := greet(t, c.host.Status().Socket)
	target, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	for _, op := range []uint16{opPath, opRMAPath} { // each of a connection of its own, which may end
		e := bad.open()
		other, data := bad.connect(e, addr.Addr{Node: c.incarnations[member].Node, Port: port}, l)
		defer other.Close()
		defer data.Close()
		code, answer, f := bad.askFor(op, e, make([]byte, 32), nil)
		if code != status.OK || f == nil {
			t.Fatalf("operation %d: %v %q", op, code, answer)
		}
		defer f.Close()
		leave(t, f)
		if err := reach(f, target.Addr().(*net.TCPAddr)); !errors.Is(err, syscall.EINPROGRESS) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the socket of operation %d connects: %v, want no answer, or that its node has ended it", op, err)
		}
		leave(t, f)
		if err := syscall.Listen(int(f.Fd()), 1); err != nil {
			t.Fatal(err)
		}
		own, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		_, p, _ := net.SplitHostPort(own.Addr().String())
		conn, err := net.DialTimeout("tcp4", "127.0.0.1:"+p, noAnswer)
		if err == nil {
			conn.Close()
			t.Errorf("the socket of operation %d accepts connections", op)
		}
	}
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(s), "another socket")
	defer f.Close()
	if err := reach(f, target.Addr().(*net.TCPAddr)); err != nil {
		t.Errorf("a socket without a lock does not connect either: %v", err)
	}
}

// noAnswer is how long an answer is waited for that must not come.
const noAnswer = 500 * time.Millisecond

// leave disconnects a socket. Package syscall has no address without a family.
func leave(t *testing.T, f *os.File) {
	t.Helper()
	none := syscall.RawSockaddrAny{Addr: syscall.RawSockaddr{Family: syscall.AF_UNSPEC}}
	_, _, errno := syscall.Syscall(syscall.SYS_CONNECT, f.Fd(), uintptr(unsafe.Pointer(&none)), syscall.SizeofSockaddrInet4)
	if errno != 0 {
		t.Fatal(errno)
	}
}

// reach connects a socket, and waits; EINPROGRESS: there is no answer.
func reach(f *os.File, to *net.TCPAddr) error {
	late := syscall.NsecToTimeval(noAnswer.Nanoseconds())
	fd := int(f.Fd())
	err := errors.Join(syscall.SetNonblock(fd, false), syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &late))
	if err != nil {
		return err
	}
	own, err := syscall.Getsockname(fd)
	if err != nil {
		return err
	}
	if _, is4 := own.(*syscall.SockaddrInet4); is4 {
		return syscall.Connect(fd, &syscall.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())})
	}
	return syscall.Connect(fd, &syscall.SockaddrInet6{Port: to.Port, Addr: [16]byte(to.IP.To16())})
}
