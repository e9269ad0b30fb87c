package transporttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/transport"
)

// An Authority signs the certificates of one cluster.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Epoch is where a bubble's clock starts; certificates are valid around both
// it and the real time. Forever is later than every test.
var (
	Epoch   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	Forever = Epoch.AddDate(100, 0, 0)
)

// NewAuthority returns the authority of a new cluster.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority-name"},
		NotBefore:             Epoch.AddDate(-1, 0, 0),
		NotAfter:              Forever,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t, cert, key}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue returns a certificate for id that is valid until notAfter.
func (ca *Authority) Issue(id transport.Identity, notAfter time.Time) tls.Certificate {
	ca.t.Helper()
	name := &url.URL{Scheme: "fabricd", Host: "cluster", Path: "/" + id.Node.String()}
	key := newKey(ca.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "node-name"},
		NotBefore:    Epoch.AddDate(-1, 0, 0),
		NotAfter:     notAfter,
		URIs:         []*url.URL{name},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TLS returns a function that makes the configuration, for either side, of a node that
// has cert and trusts ca.
func (ca *Authority) TLS(cert tls.Certificate) func() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return func() *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{cert},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    pool,
			// A node's certificate has no host name: check its chain alone.
			InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
					Roots:     pool,
					KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
				})
				if err != nil {
					return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
				}
				return nil
			},
		}
	}
}

// Identify reads the identity from the certificate's URI.
func Identify(s tls.ConnectionState) (transport.Identity, error) {
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) != 1 {
		return transport.Identity{}, errors.New("certificate names no node")
	}
	node, err := addr.ParseUUID(s.PeerCertificates[0].URIs[0].Path[1:])
	return transport.Identity{Cluster: cluster, Node: node}, err
}

var cluster = addr.UUID{0xc1}

// NodeID returns the identity of the n-th node.
func NodeID(n byte) transport.Identity {
	return transport.Identity{Cluster: cluster, Node: addr.UUID{0xa0, n, 0x55, 0x66}}
}
