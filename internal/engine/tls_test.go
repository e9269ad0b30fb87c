package engine_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// A quicker makes providers over QUIC and TCP that trust each other's certificates,
// which name a node by their serial number.
type quicker struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newQuicker(t testing.TB) *quicker {
	q := &quicker{t: t, pool: x509.NewCertPool()}
	var der []byte
	der, q.key = q.sign(&x509.Certificate{SerialNumber: big.NewInt(1000), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, nil)
	q.cert, _ = x509.ParseCertificate(der)
	q.pool.AddCert(q.cert)
	return q
}

// sign signs template with the authority's key, or with its own.
func (q *quicker) sign(template *x509.Certificate, parent *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		q.t.Fatal(err)
	}
	signer := q.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		q.t.Fatal(err)
	}
	return der, key
}

// provider returns the provider of node i at conn, or at a loopback socket.
func (q *quicker) provider(i int, conn net.PacketConn) transport.Provider {
	cfg := quic.Config{Config: q.member(i), PacketConn: conn}
	if conn == nil {
		cfg.Address = "127.0.0.1:0"
	}
	p, err := quic.New(cfg)
	if err != nil {
		q.t.Fatal(err)
	}
	return p
}

// overTCP is provider over TCP, at a loopback socket.
func (q *quicker) overTCP(i int, plaintext bool) transport.Provider {
	p, err := stream.New(stream.Config{Config: q.member(i), Address: "127.0.0.1:0", Plaintext: plaintext})
	if err != nil {
		q.t.Fatal(err)
	}
	return p
}

// member returns which peers node i trusts, and its certificate.
func (q *quicker) member(i int) network.Config {
	der, key := q.sign(&x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), KeyUsage: x509.KeyUsageDigitalSignature}, q.cert)
	config := func() *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: q.pool,
			InsecureSkipVerify: true, // there are no host names
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: q.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
				return err
			},
		}
	}
	identify := func(s tls.ConnectionState) (transport.Identity, error) {
		if len(s.PeerCertificates) == 0 {
			return transport.Identity{}, errors.New("no certificate")
		}
		serial := s.PeerCertificates[0].SerialNumber.Int64()
		return transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(serial)), Host: serial == 1}, nil
	}
	return network.Config{ServerTLS: config, ClientTLS: config, Identify: identify}
}
