package path

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAHeldSocketIsInNoPoller: an application's sends and receives do not wake the
// node that holds a duplicate of its socket.
func TestAHeldSocketIsInNoPoller(t *testing.T) {
	used, h := held(t)
	if polled(t, h.bare.fd) {
		t.Error("the duplicate is in the poller")
	}
	uh, err := Use(used)
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	if err := uh.control(func(n uintptr) { fd = int(n) }); err != nil {
		t.Fatal(err)
	}
	if !polled(t, fd) {
		t.Error("a socket that this process uses is not found in the poller: the test finds nothing")
	}
}

// held returns a socket and the Held of the one at its other end.
func held(t *testing.T) (peer *net.TCPConn, h *Held) {
	t.Helper()
	fa, fb := sockets(t)
	peer = connOf(t, fb)
	h, err := Hold(connOf(t, fa))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close(); h.Close() })
	return peer, h
}

// polled reports whether fd is in an epoll of this process.
func polled(t *testing.T, fd int) bool {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(infos) == 0 {
		t.Fatal(infos, err)
	}
	for _, name := range infos {
		b, _ := os.ReadFile(name) // one may have been closed meanwhile
		for line := range strings.Lines(string(b)) {
			var tfd int
			if n, _ := fmt.Sscanf(line, "tfd: %d", &tfd); n == 1 && tfd == fd {
				return true
			}
		}
	}
	return false
}

// TestAHeldSocketEnds: the node ends a socket of which an application has a duplicate, and
// reads the rest of its bytes.
func TestAHeldSocketEnds(t *testing.T) {
	peer, h := held(t)
	if _, err := peer.Write([]byte("left")); err != nil {
		t.Fatal(err)
	}
	h.CloseWrite()
	if b, err := io.ReadAll(peer); err != nil || len(b) != 0 {
		t.Fatalf("the peer read %q, %v; want the end", b, err)
	}
	peer.CloseWrite()
	f, err := h.Take()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "left" {
		t.Errorf("read %q, %v", b, err)
	}
	if err := h.Close(); err == nil {
		t.Error("a descriptor that was taken is closed again")
	}
	if _, err := h.Duplicate(); err == nil {
		t.Error("a closed socket is duplicated")
	}
}
