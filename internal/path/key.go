package path

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"time"
)

// A Hash names a process's key: SHA-256 of its public key (SubjectPublicKeyInfo).
// The link carries it to the other end, which accepts that key and no other.
type Hash [sha256.Size]byte

// A Key is the key of one process, for all its paths, and lives as long.
type Key struct {
	cert tls.Certificate
	hash Hash
}

// NewKey makes a key.
func NewKey() (*Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// The certificate only carries the key: its end is not checked.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Key{
		cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf},
		hash: sha256.Sum256(leaf.RawSubjectPublicKeyInfo),
	}, nil
}

// Hash returns the key's name.
func (k *Key) Hash() Hash { return k.hash }

// protocol is the ALPN of paths.
const protocol = "fabricd-path/1"

// errOtherKey is the error of a handshake with another process than the one that
// the link has named.
var errOtherKey = errors.New("the process at the other end of the path has another key than its node has said")

// config returns TLS for one path to the process with the key that peer names.
func (k *Key) config(peer Hash) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{protocol},
		Certificates:           []tls.Certificate{k.cert},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // no name and no authority counts: VerifyConnection pins the key
		SessionTicketsDisabled: true,
		// Records have the maximum size: the path carries a stream of messages.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errOtherKey
			}
			got := sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo)
			if subtle.ConstantTimeCompare(got[:], peer[:]) != 1 {
				return errOtherKey
			}
			return nil
		},
	}
}
