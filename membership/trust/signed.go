package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fabricd/fabricd/internal/codec"
)

// A statement is a message that the host signed, such as a lease:
//
//	 0         8          10                    n
//	+---------+----------+---------------------+-----------+-------------------+
//	| time    | length m | message (m bytes)   | chain     | signature         |
//	+---------+----------+---------------------+-----------+-------------------+
//
// time is the second since 1970 at which it was signed; chain is a count byte
// and that many certificates, leaf first, each behind its 16-bit length; the
// signature fills the rest and covers the purpose and all that is before the
// chain. Integers are big endian.

const (
	// MaxStatement is the most that a signed message may hold.
	MaxStatement = 4 << 10
	// maxStatementBytes bounds a whole statement before it is parsed.
	maxStatementBytes = 32 << 10
)

// ErrStatement reports that a signed statement is malformed or forged.
var ErrStatement = errors.New("not a statement signed by the cluster's host")

// Sign signs message for a purpose with the node's own key. Statements made for
// one purpose do not verify for another. message is at most [MaxStatement].
func (s *Store) Sign(purpose string, message []byte) ([]byte, error) {
	if len(message) > MaxStatement {
		return nil, fmt.Errorf("sign %s: %d bytes, want at most %d: %w", purpose, len(message), MaxStatement, ErrTooBig)
	}
	creds := s.Credentials()
	e := codec.To(nil)
	e.U64(uint64(s.now().Unix()))
	e.Bytes(message, MaxStatement)
	sig, err := sign(creds.Key, signedBytes(purpose, e.Encoded()))
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", purpose, err)
	}
	codec.Append(&e, creds.Chain, maxChain, func(c *x509.Certificate) { e.Bytes(c.Raw, math.MaxUint16) })
	e.Fixed(sig)
	if b := e.Encoded(); e.OK() && len(b) <= maxStatementBytes {
		return b, nil
	}
	return nil, fmt.Errorf("sign %s: %w", purpose, ErrTooBig)
}

// VerifyHost returns the message of a statement that a host of this cluster signed for the purpose,
// the signer, and the time of signing.
//
// The signer's certificate must have been valid when it signed, not now: leases
// stay good while the host is lost, however long that takes.
func (s *Store) VerifyHost(purpose string, statement []byte) (message []byte, by Identity, at time.Time, err error) {
	st, err := parseStatement(statement)
	if err != nil {
		return nil, Identity{}, time.Time{}, fmt.Errorf("verify %s: %w", purpose, err)
	}
	if by, err = s.signerOf(st, purpose, st.at, x509.ExtKeyUsageServerAuth); err == nil {
		err = ExpectHost(by)
	}
	if err != nil {
		return nil, Identity{}, time.Time{}, fmt.Errorf("verify %s: %w: %w", purpose, ErrStatement, err)
	}
	return st.message, by, st.at, nil
}

// signerOf returns the node of this cluster that has signed a statement for the purpose, with a
// certificate that is valid at a time.
func (s *Store) signerOf(st statement, purpose string, at time.Time, usage x509.ExtKeyUsage) (Identity, error) {
	id, err := s.memberOf(st.chain, at, usage)
	if err == nil {
		err = checkSignature(st.chain[0], signedBytes(purpose, st.signed), st.signature)
	}
	return id, err
}

// VerifyNode returns the message of a statement that a node of this cluster, in whatever role, has
// just signed for the purpose, and the signer. Its certificate must be valid now.
func (s *Store) VerifyNode(purpose string, statement []byte) (message []byte, by Identity, err error) {
	st, err := parseStatement(statement)
	if err == nil {
		by, err = s.signerOf(st, purpose, s.now(), x509.ExtKeyUsageClientAuth)
	}
	if err != nil {
		return nil, Identity{}, fmt.Errorf("verify %s: %w", purpose, err)
	}
	return st.message, by, nil
}

// signedBytes returns the bytes that a signature covers.
func signedBytes(purpose string, b []byte) []byte {
	out := []byte("fabricd statement 1\x00" + purpose + "\x00")
	return append(out, b...)
}

type statement struct {
	at        time.Time
	message   []byte
	signed    []byte // the bytes that the signature covers, without the purpose
	chain     []*x509.Certificate
	signature []byte
}

func parseStatement(b []byte) (statement, error) {
	if len(b) > maxStatementBytes {
		return statement{}, fmt.Errorf("%w: %d bytes", ErrTooBig, len(b))
	}
	d := codec.From(b)
	seconds := d.U64()
	d.Require(seconds <= 1<<40) // the year 36812; beyond it, time.Unix would wrap
	st := statement{at: time.Unix(int64(seconds), 0).UTC(), message: d.Bytes(MaxStatement)}
	signed := len(b) - d.Left()
	st.signed = b[:signed:signed]
	chain := codec.List(&d, maxChain, func() []byte { return d.Bytes(math.MaxUint16) })
	if !d.OK() || len(chain) == 0 {
		return statement{}, fmt.Errorf("%w: malformed, %d bytes", ErrStatement, len(b))
	}
	st.signature = d.Rest(maxStatementBytes)
	for _, der := range chain {
		cert, err := parseCertificate(der)
		if err != nil {
			return statement{}, fmt.Errorf("%w: %w", ErrStatement, err)
		}
		st.chain = append(st.chain, cert)
	}
	return st, nil
}

// sign signs with the one algorithm that belongs to each kind of key.
func sign(key crypto.Signer, b []byte) ([]byte, error) {
	digest := sha256.Sum256(b)
	switch key.Public().(type) {
	case ed25519.PublicKey:
		return key.Sign(rand.Reader, b, crypto.Hash(0))
	case *rsa.PublicKey:
		return key.Sign(rand.Reader, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
	case *ecdsa.PublicKey:
		return key.Sign(rand.Reader, digest[:], crypto.SHA256)
	}
	return nil, ErrKey
}

func checkSignature(cert *x509.Certificate, b, sig []byte) error {
	switch cert.PublicKey.(type) {
	case ed25519.PublicKey:
		return cert.CheckSignature(x509.PureEd25519, b, sig)
	case *rsa.PublicKey:
		return cert.CheckSignature(x509.SHA256WithRSAPSS, b, sig)
	case *ecdsa.PublicKey:
		return cert.CheckSignature(x509.ECDSAWithSHA256, b, sig)
	}
	return ErrKey
}
