package daemon

import (
	"net"
	"os"
	"strings"
	"testing"
)

// TestANodeWithoutItsSocketIsNotHealthy: no application can attach.
func TestANodeWithoutItsSocketIsNotHealthy(t *testing.T) {
	host, _ := testHost(t)
	socket := host.cfg.Local.Socket
	if h := host.Health(); !h.Healthy {
		t.Fatalf("a node that has joined: %+v", h)
	}
	bad := func(what, want string) {
		t.Helper()
		if h := host.Health(); h.Healthy || !strings.HasPrefix(h.Detail, "joined, but no application can attach: ") || !strings.Contains(h.Detail, want) {
			t.Errorf("%s: %+v, want %s", what, h, want)
		}
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	bad("the socket is gone", "no such file")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	bad("a socket of nobody is there", "refused")
}
