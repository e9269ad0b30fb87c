package network

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// With any configuration of the caller, there is nothing to replay: TLS 1.3, our protocol, no
// tickets. The caller's own copy is unchanged.
func TestConfigurationsAreHardened(t *testing.T) {
	loose := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	base := func() *tls.Config { return loose }
	both := TLS{Provider: "test", ALPN: "test/1", Server: base, Client: base}
	server, err := both.ServerConfig().GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := both.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*tls.Config{"server": server, "client": client} {
		if c.MinVersion != tls.VersionTLS13 || len(c.NextProtos) != 1 || c.NextProtos[0] != "test/1" {
			t.Errorf("%s: version %#x, protocols %q", name, c.MinVersion, c.NextProtos)
		}
		if !c.SessionTicketsDisabled || c.ClientSessionCache != nil {
			t.Errorf("%s: sessions can be resumed", name)
		}
	}
	if loose.MinVersion != tls.VersionTLS12 || loose.ClientSessionCache == nil {
		t.Error("the caller's configuration has changed")
	}
}

func TestRefusalsAreCountedAndLogged(t *testing.T) {
	var out bytes.Buffer
	refused := 0
	s := New("test", "sessions over test", zerolog.New(&out), func() { refused++ })
	s.Refused(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7}, errors.New("no \x1b[2J"))
	s.End()
	s.Wait()
	if refused != 1 {
		t.Errorf("%d refusals were counted, want 1", refused)
	}
	if log := out.String(); !strings.Contains(log, "10.0.0.1:7") || !strings.Contains(log, "session refused") || strings.Contains(log, "\\u001b[2J") {
		t.Errorf("the log says %s", log)
	}
}
