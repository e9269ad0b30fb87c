package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// JoinALPN is the protocol on which nodes without a certificate join. Links
// never speak it, so a configuration for one cannot serve the other.
const JoinALPN = "fabricd-join/1"

// ErrPin tells that the answering host's CA is not the one the token names.
var ErrPin = errors.New("the host's CA is not the one that the token names")

// ClientTLS returns the configuration with which the token's holder dials the
// host to join: the answering certificate must lead to the CA that the token
// pins, carry the host role, and be of the token's cluster. The joiner itself
// presents no certificate; afterwards it sends [Token.Proof].
func (t Token) ClientTLS(now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{JoinALPN},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // VerifyConnection checks more, see [Store.ClientTLS]
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := t.verifyHost(cs, now()); err != nil {
				return fmt.Errorf("join with %s: %w", t, err)
			}
			return nil
		},
		Time: now,
	}
}

// RejoinTLS returns the configuration with which a node that has joined dials the
// host for its next certificate, when its own has expired: the answering
// certificate must lead to a CA that the node trusts, carry the host role, and be
// of its cluster. The node presents none.
func (c Credentials) RejoinTLS(now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{JoinALPN},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // VerifyConnection checks more, see [Store.ClientTLS]
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.NegotiatedProtocol != JoinALPN {
				return fmt.Errorf("rejoin: the other end does not speak %s", JoinALPN)
			}
			id, err := verifyChain(cs.PeerCertificates, poolOf(c.Roots), now(), x509.ExtKeyUsageServerAuth)
			if err == nil {
				err = checkCluster(id, c.Cluster())
			}
			if err == nil {
				err = ExpectHost(id)
			}
			if err != nil {
				return fmt.Errorf("rejoin: %w", err)
			}
			return nil
		},
		Time: now,
	}
}

func (t Token) verifyHost(cs tls.ConnectionState, now time.Time) error {
	if cs.NegotiatedProtocol != JoinALPN {
		return fmt.Errorf("the other end does not speak %s", JoinALPN)
	}
	chain := cs.PeerCertificates
	if err := checkSizes(chain); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	pinned := false
	for _, c := range chain {
		if c.IsCA && PinOf(c) == t.Pin {
			roots.AddCert(c)
			pinned = true
		}
	}
	if !pinned {
		return ErrPin
	}
	id, err := verifyChain(chain, roots, now, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	if err := checkCluster(id, t.Cluster); err != nil {
		return err
	}
	return ExpectHost(id)
}

// JoinServerTLS returns the configuration with which the host accepts joining
// nodes. It sends its CA certificates along, for the joiner to compare with its
// token, and asks for no certificate: the joiner has none yet.
func (s *Store) JoinServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{JoinALPN},
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := s.presented()
			if err != nil {
				return nil, err
			}
			with := *cert
			with.Certificate = append([][]byte(nil), cert.Certificate...)
			for _, root := range s.Credentials().Roots {
				with.Certificate = append(with.Certificate, root.Raw)
			}
			return &with, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.NegotiatedProtocol != JoinALPN {
				return fmt.Errorf("the joining end does not speak %s", JoinALPN)
			}
			return nil
		},
		Time: s.now,
	}
}
