package trust

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

const (
	// CAValidity is how long a CA made by [NewCA] is valid.
	CAValidity = 10 * 365 * 24 * time.Hour
	// backdate lets nodes whose clock is behind accept a new certificate: by a
	// day, which is how wrong a clock is whose zone was mistaken. A certificate
	// that is valid for less than a day is backdated less: by its own incarnation.
	backdate = 25 * time.Hour
	aDay     = 24 * time.Hour
	// maxCSRBytes bounds a certificate request before it is parsed.
	maxCSRBytes = 8 << 10
)

// A Certificate is one of package x509's.
type Certificate = x509.Certificate

// A CA is a cluster's certificate authority. The host makes it once and keeps it; no other node has
// its key. It may be used by several goroutines at once.
type CA struct {
	cluster addr.UUID
	key     crypto.Signer
	cert    *x509.Certificate
}

// NewCA makes the authority of a new cluster, valid from a little before now
// for [CAValidity].
func NewCA(cluster addr.UUID, now time.Time) (*CA, error) {
	if cluster.IsZero() {
		return nil, errors.New("make CA: the zero UUID is no cluster")
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "fabricd cluster CA"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(CAValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs nodes, never another CA
		URIs:                  []*url.URL{{Scheme: "fabric", Host: cluster.String(), Path: uriCA}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	return &CA{cluster: cluster, key: key, cert: cert}, nil
}

// LoadCA parses the bytes of [CA.Encode].
func LoadCA(b []byte) (*CA, error) {
	certs, err := parseCertificates(b)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	key, err := DecodeKey(b)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	cert := certs[0]
	if len(certs) != 1 || !cert.IsCA || !samePublicKey(cert.PublicKey, key.Public()) {
		return nil, errors.New("load CA: want one CA certificate and the key that belongs to it")
	}
	cluster, err := caCluster(cert)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	return &CA{cluster: cluster, key: key, cert: cert}, nil
}

// caCluster returns the cluster whose CA NewCA made.
func caCluster(cert *x509.Certificate) (addr.UUID, error) {
	uri, err := onlyURI(cert)
	if err != nil {
		return addr.UUID{}, errors.New("the certificate names no cluster")
	}
	name := strings.TrimSuffix(strings.TrimPrefix(uri, uriScheme), uriCA)
	cluster, err := addr.ParseUUID(name)
	if err != nil || uri != uriScheme+cluster.String()+uriCA {
		return addr.UUID{}, fmt.Errorf("the certificate's name is %s, want fabric://CLUSTER-UUID/ca", shorten(uri))
	}
	return cluster, nil
}

// Encode returns the CA's certificate and private key in PEM. It is a secret;
// the caller keeps it in a file of mode 0600.
func (ca *CA) Encode() ([]byte, error) {
	key, err := EncodeKey(ca.key)
	if err != nil {
		return nil, err
	}
	return append(encodeCertificates([]*x509.Certificate{ca.cert}), key...), nil
}

// Cluster returns the cluster that the CA speaks for.
func (ca *CA) Cluster() addr.UUID { return ca.cluster }

// Certificate returns the CA's own certificate, which must not be modified.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// Pin returns the pin of this CA that join tokens carry.
func (ca *CA) Pin() Pin { return PinOf(ca.cert) }

// A Pin is the SHA-256 of a certificate's public key (its SubjectPublicKeyInfo):
// of a CA's, or a node's. It stays the same when the certificate is renewed.
type Pin [sha256.Size]byte

// PinOf returns the pin of a certificate.
func PinOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// Issue signs a certificate for id with the public key of the request csr (DER),
// valid from a little before now for validity, at most as long as the CA. It
// returns the certificate in DER.
//
// Of the request only the key is used: every name, extension and wish in it is
// ignored. The caller has decided that the requester may be id.
func (ca *CA) Issue(csr []byte, id Identity, now time.Time, validity time.Duration) ([]byte, error) {
	key, err := requestKey(csr)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	if err := ca.mayIssue(id, now, validity); err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	template, err := nodeTemplate(id, now, validity)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	return der, nil
}

func (ca *CA) mayIssue(id Identity, now time.Time, validity time.Duration) error {
	if id.Cluster != ca.cluster {
		return fmt.Errorf("%w: this CA's is %s", ErrWrongCluster, ca.cluster)
	}
	if id.Node.IsZero() {
		return errors.New("the zero UUID is no node")
	}
	if validity <= 0 {
		return fmt.Errorf("validity %s, want more than 0", validity)
	}
	if err := checkTime(ca.cert, now); err != nil {
		return fmt.Errorf("the CA's %w", err)
	}
	return nil
}

// requestKey returns the public key of a certificate request whose sender holds
// the private key.
func requestKey(csr []byte) (crypto.PublicKey, error) {
	if len(csr) > maxCSRBytes {
		return nil, fmt.Errorf("a certificate request of %d bytes, want at most %d: %w", len(csr), maxCSRBytes, ErrTooBig)
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := checkPublicKey(req.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return req.PublicKey, nil
}

func nodeTemplate(id Identity, now time.Time, validity time.Duration) (*x509.Certificate, error) {
	uri, err := url.Parse(id.URI())
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		NotBefore:             now.Add(-backdated(validity)),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{uri},
	}, nil
}

// backdated returns by how much a certificate of this validity is backdated.
func backdated(validity time.Duration) time.Duration {
	if validity < aDay {
		return validity / 10
	}
	return backdate
}

// newSerial returns a random positive serial number of 127 bits.
func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	b[15] |= 1 // never zero
	return new(big.Int).SetBytes(b[:])
}

// ParseIssued parses a certificate that [CA.Issue] returned.
func ParseIssued(der []byte) (*x509.Certificate, error) { return parseCertificate(der) }

// NewRequest makes a private key and a certificate request (DER) for it. The
// key never leaves the node.
func NewRequest() (csr []byte, key crypto.Signer, err error) {
	if key, err = NewKey(); err == nil {
		csr, err = RequestFor(key)
	}
	return csr, key, err
}

// NewKey makes a private key: a node's for good, since its identity belongs to it.
func NewKey() (crypto.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make private key: %w", err)
	}
	return private, nil
}

// RequestFor returns a certificate request (DER) for a key that the node has.
func RequestFor(key crypto.Signer) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return csr, nil
}

// RequestPin returns the pin of the key of a certificate request whose sender holds
// the private key.
func RequestPin(csr []byte) (Pin, error) {
	key, err := requestKey(csr)
	if err != nil {
		return Pin{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return Pin{}, fmt.Errorf("certificate request: %w", err)
	}
	return sha256.Sum256(der), nil
}
