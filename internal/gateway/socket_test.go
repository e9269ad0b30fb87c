package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestASocketFailsAsPackageNetSays, and costs no allocation while it does not.
func TestASocketFailsAsPackageNetSays(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		arrived := make(chan conn)
		c := dial(t, serve(t, network, func(far conn) { arrived <- far; <-arrived }))
		far := <-arrived
		word := make([]byte, 5)
		if n := testing.AllocsPerRun(100, func() {
			far.Write(word)
			io.ReadFull(c, word)
		}); n > 0 {
			t.Errorf("%s: %v allocations for a word", network, n)
		}
		c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(word); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(err.Error(), "read "+network+" ") {
			t.Errorf("%s: read past the deadline: %v", network, err)
		}
		c.SetReadDeadline(time.Time{})
		far.CloseWrite()
		if n, err := c.Read(word); n != 0 || err != io.EOF {
			t.Errorf("%s: read at the end: %d, %v", network, n, err)
		}
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Errorf("%s: read nothing: %d, %v", network, n, err)
		}
		c.SetLinger(0)
		c.Write(word)
		c.Close()
		if _, err := c.Write(word); !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "write "+network+" ") {
			t.Errorf("%s: write behind the close: %v", network, err)
		}
		if _, err := io.Copy(io.Discard, far); network == "tcp" && (!errors.Is(err, syscall.ECONNRESET) || !strings.HasSuffix(err.Error(), ": read: connection reset by peer")) {
			t.Errorf("read of what was reset: %v", err)
		}
		arrived <- nil
	}
}
