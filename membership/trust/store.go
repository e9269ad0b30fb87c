package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Store holds a node's current credentials and makes TLS configurations that
// always use the current ones: after [Store.Replace], handshakes use the new
// key, certificate and roots, and connections that exist stay as they are.
type Store struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	creds   Credentials
	id      Identity
	roots   *x509.CertPool // of creds.Roots; never modified once made
	present *tls.Certificate
}

// NewStore returns a store of creds, which must be valid at now(). The store
// reads the time only through now.
func NewStore(creds Credentials, now func() time.Time) (*Store, error) {
	id, err := creds.Check(now())
	if err != nil {
		return nil, err
	}
	s := &Store{now: now}
	s.set(creds, id)
	return s, nil
}

// Replace changes the credentials to others of the same identity. Wrong credentials are refused and
// leave the store as it was.
func (s *Store) Replace(creds Credentials) error {
	id, err := creds.Check(s.now())
	if err != nil {
		return fmt.Errorf("replace credentials: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !id.Same(s.id) {
		return fmt.Errorf("replace credentials: the new certificate is for %s, want %s", id, s.id)
	}
	s.setLocked(creds, id)
	return nil
}

func (s *Store) set(creds Credentials, id Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(creds, id)
}

func (s *Store) setLocked(creds Credentials, id Identity) {
	s.creds, s.id, s.roots = creds, id, poolOf(creds.Roots)
	s.present = &tls.Certificate{PrivateKey: creds.Key, Leaf: creds.Chain[0]}
	for _, c := range creds.Chain {
		s.present.Certificate = append(s.present.Certificate, c.Raw)
	}
}

// Identity returns the node's own identity.
func (s *Store) Identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Credentials returns the current credentials, which must not be modified.
func (s *Store) Credentials() Credentials {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.creds
}

// Pin returns the pin of the first root, the one for new join tokens.
func (s *Store) Pin() Pin { return PinOf(s.Credentials().Roots[0]) }

// Check reports whether the node's own certificate is valid now. A dialer asks
// before it dials: the peer's refusal holds less detail.
func (s *Store) Check() error {
	creds := s.Credentials()
	_, err := creds.Check(s.now())
	return err
}

// ServerTLS returns the configuration of an accepting end of links, streams and
// lifelines: TLS 1.3, mutual, no tickets and hence no resumption and no 0-RTT.
func (s *Store) ServerTLS(alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             alpn,
		SessionTicketsDisabled: true,
		// The chain is verified by VerifyConnection, which also sees the
		// store's roots after they were replaced.
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.presented()
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return s.verify(cs, x509.ExtKeyUsageClientAuth, nil)
		},
		Time: s.now,
	}
}

// ClientTLS returns the configuration of a dialing end. After the peer's
// certificate was verified, expect decides whether it is the peer that was
// meant; nil accepts every node of the cluster. It must not block.
func (s *Store) ClientTLS(expect func(Identity) error, alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             alpn,
		SessionTicketsDisabled: true,
		// Certificates name nodes, not DNS hosts, so the standard check by
		// server name is replaced by VerifyConnection, not left out.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.presented()
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return s.verify(cs, x509.ExtKeyUsageServerAuth, expect)
		},
		Time: s.now,
	}
}

// presented returns the certificate for a handshake. An expired one is refused
// here, where the reason can be reported in full.
func (s *Store) presented() (*tls.Certificate, error) {
	s.mu.Lock()
	cert := s.present
	s.mu.Unlock()
	if err := checkTime(cert.Leaf, s.now()); err != nil {
		return nil, fmt.Errorf("own certificate: %w", err)
	}
	return cert, nil
}

func (s *Store) verify(cs tls.ConnectionState, usage x509.ExtKeyUsage, expect func(Identity) error) error {
	if cs.Version < tls.VersionTLS13 {
		return errors.New("refused: older than TLS 1.3")
	}
	id, err := s.memberOf(cs.PeerCertificates, s.now(), usage)
	if err == nil && expect != nil {
		err = expect(id)
	}
	if err != nil {
		return fmt.Errorf("peer refused: %w", err)
	}
	return nil
}

// memberOf returns the member of this cluster whose chain is valid at a time.
func (s *Store) memberOf(chain []*x509.Certificate, at time.Time, usage x509.ExtKeyUsage) (Identity, error) {
	s.mu.Lock()
	roots, cluster := s.roots, s.id.Cluster
	s.mu.Unlock()
	return verifyMember(chain, roots, at, usage, cluster)
}

// Explain adds to a handshake error of TLS over a stream the facts that the peer's alert alone does
// not have: that the peer refused us, with which certificate, and the things to check. Other errors
// it returns unchanged. For QUIC, whose errors have another shape, call [Store.ExplainAlert].
func (s *Store) Explain(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return err
	}
	return s.ExplainAlert(err)
}

// ExplainAlert adds the same to an error that the caller knows to be the peer's
// alert.
func (s *Store) ExplainAlert(err error) error {
	if own := s.Check(); own != nil {
		return fmt.Errorf("the peer refused this node: %w (%w)", own, err)
	}
	creds, id := s.Credentials(), s.Identity()
	leaf := creds.Chain[0]
	return fmt.Errorf("the peer refused this node's certificate %s (valid %s to %s, CA %q); "+
		"it has another CA or cluster, or its clock differs: its log has the reason: %w",
		id, stamp(leaf.NotBefore), stamp(leaf.NotAfter), creds.Roots[0].Subject.CommonName, err)
}
