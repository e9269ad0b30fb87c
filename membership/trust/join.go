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

// ErrPin reports that the answering host's CA is not the one the token names.
var ErrPin = errors.New("the host's CA is not the one that the token names: the authority was rotated, or the token is another cluster's; make a new one with `fabricd token create`")

// ClientTLS returns the configuration with which the token's holder dials the
// host to join: the answering certificate must lead to the CA that the token
// pins, carry the host role, and be of the token's cluster. The joiner itself
// presents no certificate; afterwards it sends [Token.Proof].
func (t Token) ClientTLS(now func() time.Time) *tls.Config {
	return joinTLS("join with "+t.String(), now, t.verifyHost)
}

// RejoinTLS returns the configuration with which a node that has joined dials the
// host for its next certificate, when its own has expired: the answering
// certificate must lead to a CA that the node trusts, carry the host role, and be
// of its cluster. The node presents none.
func (c Credentials) RejoinTLS(now func() time.Time) *tls.Config {
	return joinTLS("rejoin", now, func(chain []*x509.Certificate, now time.Time) error {
		return verifyHost(chain, poolOf(c.Roots), now, c.Cluster())
	})
}

// joinTLS returns the configuration of a node that dials the host without a certificate. what names
// its purpose in errors.
func joinTLS(what string, now func() time.Time, verify func(chain []*x509.Certificate, now time.Time) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{JoinALPN},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // VerifyConnection checks more, see [Store.ClientTLS]
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.NegotiatedProtocol != JoinALPN {
				return fmt.Errorf("%s: the other end does not speak %s", what, JoinALPN)
			}
			if err := verify(cs.PeerCertificates, now()); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		},
		Time: now,
	}
}

func (t Token) verifyHost(chain []*x509.Certificate, now time.Time) error {
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
	return verifyHost(chain, roots, now, t.Cluster)
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
