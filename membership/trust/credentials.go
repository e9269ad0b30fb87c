package trust

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Credentials prove a node's identity and check others': its private key, its certificate with the
// intermediates above it, and the CA certificates that it trusts. They are not modified after they
// were made.
type Credentials struct {
	Key   crypto.Signer
	Chain []*x509.Certificate // leaf first, without the root
	Roots []*x509.Certificate // the first is the one that tokens pin
}

// NewCredentials joins a key with the certificate (DER) that [CA.Issue] made
// for it and the CA's certificates (DER), and checks that they belong together
// at now.
func NewCredentials(key crypto.Signer, cert []byte, roots [][]byte, now time.Time) (Credentials, error) {
	leaf, err := parseCertificate(cert)
	if err != nil {
		return Credentials{}, fmt.Errorf("own certificate: %w", err)
	}
	if len(roots) > maxChain {
		return Credentials{}, fmt.Errorf("%d CA certificates, want at most %d: %w", len(roots), maxChain, ErrTooBig)
	}
	c := Credentials{Key: key, Chain: []*x509.Certificate{leaf}}
	for _, der := range roots {
		root, err := parseCertificate(der)
		if err != nil {
			return Credentials{}, fmt.Errorf("CA certificate: %w", err)
		}
		c.Roots = append(c.Roots, root)
	}
	if _, err := c.Check(now); err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// IssueCredentials makes a key and has ca certify it as id. It is how the host gets its own
// credentials, and how tests get those of any node.
func IssueCredentials(ca *CA, id Identity, now time.Time, validity time.Duration) (Credentials, error) {
	csr, key, err := NewRequest()
	if err != nil {
		return Credentials{}, err
	}
	der, err := ca.Issue(csr, id, now, validity)
	if err != nil {
		return Credentials{}, err
	}
	return NewCredentials(key, der, [][]byte{ca.cert.Raw}, now)
}

// Reissue returns the credentials of the same key and identity with a certificate of
// ca, which has to be among the roots.
func (c Credentials) Reissue(ca *CA, now time.Time, validity time.Duration) (Credentials, error) {
	id, err := c.Identity()
	if err != nil {
		return Credentials{}, err
	}
	csr, err := RequestFor(c.Key)
	if err != nil {
		return Credentials{}, err
	}
	der, err := ca.Issue(csr, id, now, validity)
	if err != nil {
		return Credentials{}, err
	}
	return NewCredentials(c.Key, der, c.EncodedRoots(), now)
}

// EncodedRoots returns the CA certificates, DER.
func (c Credentials) EncodedRoots() (roots [][]byte) {
	for _, r := range c.Roots {
		roots = append(roots, r.Raw)
	}
	return roots
}

// Serial returns the serial number of the certificate, hexadecimal.
func (c Credentials) Serial() string { return c.Chain[0].SerialNumber.Text(16) }

// Identity returns the identity in the certificate.
func (c Credentials) Identity() (Identity, error) {
	if len(c.Chain) == 0 {
		return Identity{}, errors.New("no own certificate")
	}
	return CertificateIdentity(c.Chain[0])
}

// Cluster returns the cluster in the certificate, or the zero UUID.
func (c Credentials) Cluster() addr.UUID {
	id, err := c.Identity()
	if err != nil {
		return addr.UUID{}
	}
	return id.Cluster
}

// Check verifies at now all that a peer with the same roots will verify, for
// both directions, and that the key belongs to the certificate.
func (c Credentials) Check(now time.Time) (Identity, error) {
	if len(c.Roots) == 0 {
		return Identity{}, errors.New("no CA certificate")
	}
	for _, r := range c.Roots {
		if !r.IsCA {
			return Identity{}, fmt.Errorf("CA certificate %q: it is not a CA's (basic constraints)", r.Subject)
		}
	}
	if len(c.Chain) == 0 || c.Key == nil {
		return Identity{}, errors.New("own certificate or key missing")
	}
	if !samePublicKey(c.Chain[0].PublicKey, c.Key.Public()) {
		return Identity{}, errors.New("the private key does not belong to the certificate")
	}
	pool := poolOf(c.Roots)
	if _, err := verifyChain(c.Chain, pool, now, x509.ExtKeyUsageServerAuth); err != nil {
		return Identity{}, fmt.Errorf("own certificate: %w", err)
	}
	id, err := verifyChain(c.Chain, pool, now, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return Identity{}, fmt.Errorf("own certificate: %w", err)
	}
	return id, nil
}

// RenewAt returns when to ask for the next certificate: after two thirds of
// this one's incarnation.
func (c Credentials) RenewAt() time.Time {
	return c.Issued().Add(c.Chain[0].NotAfter.Sub(c.Issued()) / 3 * 2)
}

// Issued returns when the certificate was issued, if [CA.Issue] did that: it is
// valid from some time before.
func (c Credentials) Issued() time.Time {
	leaf := c.Chain[0]
	if total := leaf.NotAfter.Sub(leaf.NotBefore); total < aDay+backdate {
		return leaf.NotBefore.Add(total / 11)
	}
	return leaf.NotBefore.Add(backdate)
}

// Encode returns the credentials as one PEM text: key, chain, then roots. One
// file holds all three, so that a crash between two writes cannot leave a key
// beside the certificate of another. It is a secret.
//
// Roots must be self-signed, as every CA of [NewCA] is: it is how
// [ParseCredentials] separates them from the chain. An operator's files, where they
// need not be, are never encoded.
func (c Credentials) Encode() ([]byte, error) {
	for _, r := range c.Roots {
		if !isRoot(r) {
			return nil, fmt.Errorf("encode credentials: CA certificate %q is not self-signed", r.Subject)
		}
	}
	b, err := EncodeKey(c.Key)
	if err != nil {
		return nil, err
	}
	b = append(b, encodeCertificates(c.Chain)...)
	return append(b, encodeCertificates(c.Roots)...), nil
}

// ParseCredentials parses the bytes of [Credentials.Encode]. It does not check validity in time, so
// that expired credentials can be distinguished from damaged ones: call [Credentials.Check].
func ParseCredentials(b []byte) (Credentials, error) {
	key, err := DecodeKey(b)
	if err != nil {
		return Credentials{}, fmt.Errorf("parse credentials: %w", err)
	}
	certs, err := parseCertificates(b)
	if err != nil {
		return Credentials{}, fmt.Errorf("parse credentials: %w", err)
	}
	c := Credentials{Key: key}
	for i, cert := range certs {
		if i > 0 && isRoot(cert) {
			c.Roots = append(c.Roots, cert)
		} else {
			c.Chain = append(c.Chain, cert)
		}
	}
	return c, nil
}

// isRoot reports whether a CA certificate is signed by its own key.
func isRoot(c *x509.Certificate) bool { return c.IsCA && c.CheckSignatureFrom(c) == nil }

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}
