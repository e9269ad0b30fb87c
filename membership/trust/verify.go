package trust

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds of a peer's certificates. Chains of real authorities are two or three certificates of one
// or two kilobytes.
const (
	maxChain            = 6
	maxCertificateBytes = 8 << 10
)

// Causes of a refused certificate, for [errors.Is].
var (
	ErrWrongCA      = errors.New("signed by a CA that this cluster does not trust")
	ErrExpired      = errors.New("certificate expired")
	ErrNotYetValid  = errors.New("certificate not yet valid")
	ErrWrongCluster = errors.New("certificate of another cluster")
	ErrNotHost      = errors.New("not a host certificate")
	ErrTooBig       = errors.New("certificates exceed the size limit")
)

// verifyChain checks that chain, leaf first, leads to one of roots at now and
// may be used as usage, and returns the identity in the leaf.
func verifyChain(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, usage x509.ExtKeyUsage) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, ErrNoCertificate
	}
	if err := checkSizes(chain); err != nil {
		return Identity{}, err
	}
	leaf := chain[0]
	id, err := CertificateIdentity(leaf)
	if err != nil {
		return Identity{}, err
	}
	if err := checkTime(leaf, now); err != nil {
		return Identity{}, fmt.Errorf("%s: %w", id, err)
	}
	middle := x509.NewCertPool()
	for _, c := range chain[1:] {
		middle.AddCert(c)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: middle,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return Identity{}, fmt.Errorf("%s: %w", id, explainVerify(err))
	}
	return id, nil
}

// checkSizes bounds the certificates that a peer may make us verify.
func checkSizes(chain []*x509.Certificate) error {
	if len(chain) > maxChain {
		return fmt.Errorf("%d certificates, want at most %d: %w", len(chain), maxChain, ErrTooBig)
	}
	for _, c := range chain {
		if len(c.Raw) > maxCertificateBytes {
			return fmt.Errorf("a certificate of %d bytes, want at most %d: %w", len(c.Raw), maxCertificateBytes, ErrTooBig)
		}
	}
	return nil
}

// checkTime returns which bound of the validity now is outside of, and by how much.
func checkTime(c *x509.Certificate, now time.Time) error {
	if now.After(c.NotAfter) {
		return fmt.Errorf("%w since %s (%s ago)", ErrExpired, stamp(c.NotAfter), now.Sub(c.NotAfter).Round(time.Second))
	}
	if now.Before(c.NotBefore) {
		return fmt.Errorf("%w until %s (%s from now; is a clock wrong?)", ErrNotYetValid, stamp(c.NotBefore), c.NotBefore.Sub(now).Round(time.Second))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// explainVerify replaces x509's error by one that a caller can match. The
// leaf's own validity was checked before, so an invalid time is a signer's.
func explainVerify(err error) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return ErrWrongCA
	}
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w: its signer's: %w", ErrExpired, err)
	}
	return err
}

// verifyMember is verifyChain for the members of one cluster.
func verifyMember(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, usage x509.ExtKeyUsage, cluster addr.UUID) (Identity, error) {
	id, err := verifyChain(chain, roots, now, usage)
	if err == nil && id.Cluster != cluster {
		err = fmt.Errorf("%s: %w: want %s", id, ErrWrongCluster, cluster)
	}
	return id, err
}

// verifyHost is verifyMember for a host that is dialed.
func verifyHost(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, cluster addr.UUID) error {
	id, err := verifyMember(chain, roots, now, x509.ExtKeyUsageServerAuth, cluster)
	if err == nil {
		err = ExpectHost(id)
	}
	return err
}

// ExpectNode accepts exactly the node with this UUID, in any role. It is an
// argument for [Store.ClientTLS].
func ExpectNode(node addr.UUID) func(Identity) error {
	return func(id Identity) error {
		if id.Node != node {
			return fmt.Errorf("%s: answered instead of node %s", id, node)
		}
		return nil
	}
}

// ExpectHost accepts only certificates with the host role. It is an argument
// for [Store.ClientTLS].
func ExpectHost(id Identity) error {
	if !id.Host {
		return fmt.Errorf("%s: %w", id, ErrNotHost)
	}
	return nil
}
