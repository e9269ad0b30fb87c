package quic

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/transport"
)

// A failingConn is a socket whose writes fail with a given error.
type failingConn struct {
	net.PacketConn
	fails atomic.Pointer[error]
}

func (c *failingConn) fail(err error) {
	if err == nil {
		c.fails.Store(nil)
		return
	}
	c.fails.Store(&err)
}

func (c *failingConn) WriteTo(p []byte, to net.Addr) (int, error) {
	if err := c.fails.Load(); err != nil {
		return 0, *err
	}
	return c.PacketConn.WriteTo(p, to)
}

// TestLocalSendErrorsAreLoss: for 300 ms the kernel of one end refuses all packets, as it does
// while an interface is down or a firewall drops them. The session survives, and no byte written
// meanwhile is missing.
func TestLocalSendErrorsAreLoss(t *testing.T) {
	for _, no := range []syscall.Errno{syscall.EPERM, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN,
		syscall.ENOBUFS, syscall.EINVAL, syscall.EADDRNOTAVAIL} {
		t.Run(no.Error(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				outlives(t, &net.OpError{Op: "write", Net: "udp", Err: os.NewSyscallError("sendmsg", no)})
			})
		})
	}
}

func outlives(t *testing.T, failure error) {
	network := netsim.New(1)
	network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
	ca := testca.New()
	inner, err := network.ListenPacket(addrA)
	if err != nil {
		t.Fatal(err)
	}
	socket := &failingConn{PacketConn: inner}
	cfg := member(ca, idA)
	cfg.PacketConn = socket
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	b := start(t, network, addrB, member(ca, idB))
	sa, sb := sessionOf(t, a, b)
	out, err := sa.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789"), 100_000)
	write := func(p []byte) {
		if _, err := out.Write(p); err != nil {
			t.Errorf("write: %v", err)
		}
	}
	write(want[:1000])
	in, err := sb.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		p, err := io.ReadAll(in)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		got <- p
	}()
	socket.fail(failure)
	go func() {
		time.Sleep(300 * time.Millisecond)
		socket.fail(nil)
	}()
	write(want[1000:])
	if err := out.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if p := <-got; !bytes.Equal(p, want) {
		t.Errorf("%d bytes arrived of %d", len(p), len(want))
	}
	if err := sa.Err(); err != nil {
		t.Errorf("the session has ended: %v", err)
	}
}

// sessionOf returns the two ends of a session.
func sessionOf(t *testing.T, a, b *Provider) (sa, sb transport.Session) {
	t.Helper()
	sa, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if sb, err = b.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sa, sb
}

// TestTooLargeIsNoLoss: by these errors quic-go detects the packet size of a path, and offloads
// that the device lacks.
func TestTooLargeIsNoLoss(t *testing.T) {
	for _, err := range []error{nil, syscall.EMSGSIZE, syscall.EIO, net.ErrClosed} {
		if isLoss(err) {
			t.Errorf("%v counts as loss", err)
		}
	}
}
