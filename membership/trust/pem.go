package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxPEMBytes bounds a file of certificates or keys before it is parsed.
const maxPEMBytes = 64 << 10

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// ErrKey reports that a private key is of a kind that links cannot use.
var ErrKey = errors.New("want one Ed25519, ECDSA P-256, P-384 or RSA (2048 bits or more) key in PKCS #8, PEM \"PRIVATE KEY\"")

// pemBlocks returns the contents of all blocks of one type. Text between blocks
// is passed over, as every reader of PEM does.
func pemBlocks(b []byte, kind string) ([][]byte, error) {
	if len(b) > maxPEMBytes {
		return nil, fmt.Errorf("%d bytes of PEM, want at most %d: %w", len(b), maxPEMBytes, ErrTooBig)
	}
	var found [][]byte
	for {
		var block *pem.Block
		block, b = pem.Decode(b)
		if block == nil {
			return found, nil
		}
		if block.Type == kind {
			found = append(found, block.Bytes)
		}
	}
}

// parseCertificates parses all certificates of a PEM file, at least one.
func parseCertificates(b []byte) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(b, pemCertificate)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return nil, errors.New("no PEM block \"CERTIFICATE\"")
	}
	if len(blocks) > maxChain {
		return nil, fmt.Errorf("%d certificates, want at most %d: %w", len(blocks), maxChain, ErrTooBig)
	}
	certs := make([]*x509.Certificate, 0, len(blocks))
	for _, der := range blocks {
		c, err := parseCertificate(der)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// parseCertificate parses one certificate, whose size it bounds first.
func parseCertificate(der []byte) (*x509.Certificate, error) {
	if len(der) > maxCertificateBytes {
		return nil, fmt.Errorf("a certificate of %d bytes, want at most %d: %w", len(der), maxCertificateBytes, ErrTooBig)
	}
	return x509.ParseCertificate(der)
}

// DecodeKey parses the one private key of a PEM file, such as that of [EncodeKey].
func DecodeKey(b []byte) (crypto.Signer, error) {
	blocks, err := pemBlocks(b, pemKey)
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d private keys: %w", len(blocks), ErrKey)
	}
	key, err := x509.ParsePKCS8PrivateKey(blocks[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok || checkPublicKey(signer.Public()) != nil {
		return nil, fmt.Errorf("a key of type %T: %w", key, ErrKey)
	}
	return signer, nil
}

// checkPublicKey accepts the keys that links may use.
func checkPublicKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits == 256 || bits == 384 {
			return nil
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits >= 2048 && bits <= 4096 {
			return nil
		}
	}
	return ErrKey
}

func encodeCertificates(certs []*x509.Certificate) []byte {
	var b []byte
	for _, c := range certs {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw})...)
	}
	return b
}

// EncodeKey returns a private key in PEM. It is a secret.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// samePublicKey reports whether two public keys are equal.
func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
