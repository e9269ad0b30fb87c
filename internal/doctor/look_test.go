package doctor

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/membership/trust"
)

// place returns a configuration with files in a directory of the test, and with free ports.
func place(t *testing.T) daemon.Config {
	dir := t.TempDir()
	c := daemon.Default()
	c.StateDir = filepath.Join(dir, "new", "state")
	c.Local.Socket, c.Local.AdminSocket = filepath.Join(dir, "new", "s"), filepath.Join(dir, "a")
	c.Network.DataPort, c.Network.GossipPort = 0, 0
	return c
}

// look returns the findings for c on this machine, by check.
func look(t *testing.T, c daemon.Config) map[string]Finding {
	client := daemon.NewClient(c.Local.AdminSocket)
	defer client.Close()
	found := map[string]Finding{}
	for _, f := range Judge(c, Look(t.Context(), c, []string{"FABRIC_TYPO=1"}, client)) {
		found[f.Check] = f
	}
	return found
}

// member returns the address of a data port, which answers newcomers.
func member(t *testing.T) string { return serverWith(t, trust.JoinALPN) }

// server returns the address of a server over TLS that speaks some protocols.
func serverWith(t *testing.T, protocols ...string) string {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{NextProtos: protocols}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestAGossipPortIsNoAddressToJoin: it accepts connections, and closes them when it cannot parse
// their bytes. So does any other server.
func TestAGossipPortIsNoAddressToJoin(t *testing.T) {
	gossip, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer gossip.Close()
	serving.Go(func() {
		for {
			c, err := gossip.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 512))
			c.Close()
		}
	})
	web := serverWith(t)
	for _, address := range []string{gossip.Addr().String(), web} {
		found := joins(Facts{Joins: dialAll(t.Context(), []string{address, member(t)})})
		if found[0].State != Note || found[1].State != OK || !strings.Contains(found[0].Found, "no data port") {
			t.Errorf("%+v", found)
		}
		found = joins(Facts{Joins: dialAll(t.Context(), []string{address})})
		if found[0].State != Bad || !strings.Contains(found[0].Remedy, "gossip") {
			t.Errorf("%+v", found)
		}
	}
}

func TestThisMachineCanHaveANode(t *testing.T) {
	c := place(t)
	c.Join = []string{member(t)}
	found := look(t, c)
	for check, f := range found {
		if f.State == Bad {
			t.Errorf("%+v", f)
		}
		if f.State == Note && check != "environment" {
			t.Logf("%+v", f) // so is this machine
		}
	}
	if found["path-lock"].State != OK && os.Geteuid() == 0 {
		t.Errorf("%+v", found["path-lock"])
	}
	if found["environment"].State != Note || !strings.HasPrefix(found["join"].Found, c.Join[0]) {
		t.Errorf("%+v", found)
	}
	if entries, err := os.ReadDir(filepath.Dir(c.Local.AdminSocket)); err != nil || len(entries) != 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}

// TestWhatIsInTheWayIsFound puts something in the way of each thing that a node
// needs.
func TestWhatIsInTheWayIsFound(t *testing.T) {
	c := place(t)
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	c.Network.DataPort = uint16(port)
	c.StateDir = filepath.Join(t.TempDir(), "file", "state")
	c.TokenFile = filepath.Join(t.TempDir(), "none")
	for _, file := range []string{c.Local.AdminSocket, filepath.Dir(c.StateDir)} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(c.Local.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unixpacket", c.Local.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c.Join = []string{"127.0.0.1:9"} // discard, without a server
	c.TLS = daemon.TLSConfig{CA: c.TokenFile, Cert: c.TokenFile, Key: c.TokenFile}
	found := look(t, c)
	for check, want := range map[string]string{"data-port": strconv.Itoa(port), "state-dir": "not a directory", "token-file": "no such file",
		"admin": "not a socket", "socket": "another process listens", "join": "refused", "cert": "no such file"} {
		if f := found[check]; f.State != Bad || !strings.Contains(f.Found, want) {
			t.Errorf("%s: %+v, want it bad, with %q", check, f, want)
		}
	}
}
