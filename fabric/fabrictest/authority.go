package fabrictest

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
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/quic"
)

// An authority signs the certificates of one test cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(1, "fabrictest")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert, key, pool}, nil
}

// certificate is a template that is valid for as long as a test may run.
func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
}

// config returns the part of a provider's configuration with its own certificate
// and the CA that it trusts.
func (a *authority) config(id transport.Identity) (quic.Config, error) {
	cert, err := a.issue(id)
	if err != nil {
		return quic.Config{}, err
	}
	base := func() *tls.Config {
		return &tls.Config{
			Certificates:       []tls.Certificate{cert},
			ClientAuth:         tls.RequireAndVerifyClientCert,
			ClientCAs:          a.pool,
			InsecureSkipVerify: true, // nodes have no host names; VerifyConnection checks the chain
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
					Roots: a.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
				})
				return err
			},
		}
	}
	return quic.Config{ServerTLS: base, ClientTLS: base, Identify: identify}, nil
}

// issue returns a certificate whose URI is fabrictest://cluster/role/node.
func (a *authority) issue(id transport.Identity) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	role := "node"
	if id.Host {
		role = "host"
	}
	template := certificate(2, "fabrictest node")
	template.URIs = []*url.URL{{Scheme: "fabrictest", Host: id.Cluster.String(), Path: "/" + role + "/" + id.Node.String()}}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// identify reads the identity that issue wrote into a certificate.
func identify(s tls.ConnectionState) (transport.Identity, error) {
	errName := errors.New("the certificate names no node")
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) != 1 {
		return transport.Identity{}, errName
	}
	u := s.PeerCertificates[0].URIs[0]
	if len(u.Path) < len("/node/") {
		return transport.Identity{}, errName
	}
	cluster, err1 := addr.ParseUUID(u.Host)
	node, err2 := addr.ParseUUID(u.Path[len("/node/"):])
	return transport.Identity{Cluster: cluster, Node: node, Host: u.Path[:6] == "/host/"}, errors.Join(err1, err2)
}
