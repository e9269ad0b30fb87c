// Package testca signs the certificates of nodes in tests. Its functions panic where the
// standard library fails to make a key or a certificate.
package testca

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
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/transport"
)

// An Authority signs the certificates of one cluster.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

// Epoch is where a bubble's clock starts; certificates are valid around both
// it and the real time. Forever is later than every test.
var (
	Epoch   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	Forever = Epoch.AddDate(100, 0, 0)
)

// New returns the authority of a new cluster.
func New() *Authority {
	ca := &Authority{key: newKey(), pool: x509.NewCertPool()}
	template := template(1, "authority-name", Forever)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	ca.cert = template // signs itself
	ca.cert = must(x509.ParseCertificate(ca.sign(template, ca.key)))
	ca.pool.AddCert(ca.cert)
	return ca
}

func must[T any](v T, err error) T {
	if err != nil {
		panic("BUG: testca: " + err.Error())
	}
	return v
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func template(serial int64, name string, notAfter time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    Epoch.AddDate(-1, 0, 0),
		NotAfter:     notAfter,
	}
}

// sign returns a certificate for key.
func (ca *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	return must(x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key))
}

// Issue returns a certificate for id that is valid until notAfter. Its URI is
// testca://cluster/role/node.
func (ca *Authority) Issue(id transport.Identity, notAfter time.Time) tls.Certificate {
	role := "/node/"
	if id.Host {
		role = "/host/"
	}
	key := newKey()
	template := template(2, "node-name", notAfter)
	template.URIs = []*url.URL{{Scheme: "testca", Host: id.Cluster.String(), Path: role + id.Node.String()}}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return tls.Certificate{Certificate: [][]byte{ca.sign(template, key)}, PrivateKey: key}
}

// TLS returns a function that makes the configuration, for either side, of a node that
// has cert and trusts ca.
func (ca *Authority) TLS(cert tls.Certificate) func() *tls.Config {
	return func() *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{cert},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    ca.pool,
			// A node's certificate has no host name: check its chain alone.
			InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
					Roots:     ca.pool,
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

// Identify reads the identity that Issue wrote into a certificate.
func Identify(s tls.ConnectionState) (transport.Identity, error) {
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) != 1 {
		return transport.Identity{}, errors.New("certificate names no node")
	}
	u := s.PeerCertificates[0].URIs[0]
	node, isHost := strings.CutPrefix(u.Path, "/host/")
	cluster, err1 := addr.ParseUUID(u.Host)
	id, err2 := addr.ParseUUID(strings.TrimPrefix(node, "/node/"))
	return transport.Identity{Cluster: cluster, Node: id, Host: isHost}, errors.Join(err1, err2)
}
