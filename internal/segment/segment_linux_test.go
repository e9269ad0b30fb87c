package segment

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBothEndsSendSmallSegments asks the kernel, with either IP that there is.
func TestBothEndsSendSmallSegments(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			if address[0] == '[' {
				continue // a machine without IPv6
			}
			t.Fatal(err)
		}
		defer l.Close()
		a, err := Dialer().DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for end, c := range map[string]net.Conn{"dialer": a, "listener": b} {
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			err = raw.Control(func(fd uintptr) {
				if got, err := syscall.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil || got > Small || got < Small/2 {
					t.Errorf("%s of %s: segments of %d bytes, %v; want at most %d", end, address, got, err, Small)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
