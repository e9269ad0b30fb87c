package network

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/fabricd/fabricd/internal/guard"
)

// TLS is the configuration of mutual authentication.
type TLS struct {
	Provider       string // its name, for errors
	ALPN           string
	Server, Client func() *tls.Config // of the next handshake

	// Panicked is called when a verification panics, which refuses the peer. Nil: the panic
	// propagates in the goroutine of the handshake.
	Panicked func(err error, stack []byte)
}

// ServerConfig returns the configuration for incoming handshakes.
func (t TLS) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{t.ALPN},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := t.Server().Clone()
			if c.ClientAuth != tls.RequireAndVerifyClientCert &&
				(c.ClientAuth != tls.RequireAnyClientCert || c.VerifyPeerCertificate == nil && c.VerifyConnection == nil) {
				return nil, fmt.Errorf("%s: ServerTLS does not verify the client's certificate", t.Provider)
			}
			t.harden(c)
			return c, nil
		},
	}
}

// ClientConfig returns the configuration for one Dial.
func (t TLS) ClientConfig() (*tls.Config, error) {
	c := t.Client().Clone()
	if c.InsecureSkipVerify && c.VerifyPeerCertificate == nil && c.VerifyConnection == nil {
		return nil, fmt.Errorf("%s: ClientTLS does not verify the server's certificate", t.Provider)
	}
	t.harden(c)
	return c, nil
}

// harden sets the options that the caller cannot choose: no tickets, hence no 0-RTT, hence no
// replay.
func (t TLS) harden(c *tls.Config) {
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = []string{t.ALPN}
	c.SessionTicketsDisabled = true
	c.ClientSessionCache = nil
	if t.Panicked == nil {
		return
	}
	if verify := c.VerifyPeerCertificate; verify != nil {
		c.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			return t.guarded(func() error { return verify(raw, chains) })
		}
	}
	if verify := c.VerifyConnection; verify != nil {
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			return t.guarded(func() error { return verify(cs) })
		}
	}
}

// guarded calls verify, and turns a panic into a refusal of the peer.
func (t TLS) guarded(verify func() error) (err error) {
	defer guard.Recover(func(e error, stack []byte) {
		t.Panicked(e, stack)
		err = e
	})
	return verify()
}
