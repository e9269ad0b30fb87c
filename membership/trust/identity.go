package trust

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// An Identity is the set of facts that a certificate proves about its holder.
type Identity struct {
	Cluster addr.UUID
	Node    addr.UUID
	// Host: the holder may act as the cluster's host, node 0.
	Host bool
	// NotAfter is the end of the certificate's validity. It is not part of
	// the name: [Identity.Same] ignores it, [ParseURI] leaves it zero.
	NotAfter time.Time
	// Key is the SHA-256 of the certificate's public key. It stays the same when
	// the certificate is renewed. Like NotAfter, it is not part of the name.
	Key Pin
}

const (
	uriScheme  = "fabric://"
	uriNode    = "/node/"
	uriHost    = "/host"
	uriCA      = "/ca"
	uuidLength = 36
)

// URI returns the identity's name in certificates:
// "fabric://CLUSTER/node/NODE", with "/host" behind it for the host role.
func (id Identity) URI() string {
	s := uriScheme + id.Cluster.String() + uriNode + id.Node.String()
	if id.Host {
		s += uriHost
	}
	return s
}

// String returns the same as [Identity.URI].
func (id Identity) String() string { return id.URI() }

// Same reports whether both name the same node of the same cluster in the same
// role.
func (id Identity) Same(other Identity) bool {
	return id.Cluster == other.Cluster && id.Node == other.Node && id.Host == other.Host
}

// ErrIdentity is the cause of every error about a certificate whose name is not
// exactly one identity of a fabric.
var ErrIdentity = errors.New("want exactly one name of the form fabric://CLUSTER-UUID/node/NODE-UUID[/host], lower case")

// ParseURI parses the text of [Identity.URI], and nothing else: no upper case, no escapes, no
// further parts, no zero UUID.
func ParseURI(s string) (Identity, error) {
	id, ok := parseURI(s)
	if !ok || id.URI() != s {
		return Identity{}, fmt.Errorf("name %s: %w", shorten(s), ErrIdentity)
	}
	return id, nil
}

// parseURI parses leniently; its caller compares the result with the input.
func parseURI(s string) (id Identity, ok bool) {
	rest, ok := strings.CutPrefix(s, uriScheme)
	if !ok || len(rest) < 2*uuidLength+len(uriNode) {
		return Identity{}, false
	}
	cluster, err := addr.ParseUUID(rest[:uuidLength])
	if err != nil {
		return Identity{}, false
	}
	rest, ok = strings.CutPrefix(rest[uuidLength:], uriNode)
	if !ok || len(rest) < uuidLength {
		return Identity{}, false
	}
	node, err := addr.ParseUUID(rest[:uuidLength])
	if err != nil {
		return Identity{}, false
	}
	id = Identity{Cluster: cluster, Node: node, Host: rest[uuidLength:] == uriHost}
	return id, !cluster.IsZero() && !node.IsZero()
}

// shorten quotes hostile text for an error message.
func shorten(s string) string {
	const most = 120
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// oidSAN is the subject alternative name extension, RFC 5280 section 4.2.1.6.
var oidSAN = asn1.ObjectIdentifier{2, 5, 29, 17}

// onlyURI returns the certificate's one subject alternative name, byte for byte
// as it was signed. It does not use cert.URIs: these went through url.Parse,
// which drops an empty fragment and more, and x509 passes over kinds of names
// that it does not know.
func onlyURI(cert *x509.Certificate) (string, error) {
	var value []byte
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(oidSAN) {
			continue
		}
		if value != nil {
			return "", fmt.Errorf("two extensions with names: %w", ErrIdentity)
		}
		value = ext.Value
	}
	var names []asn1.RawValue
	rest, err := asn1.Unmarshal(value, &names)
	if err != nil || len(rest) != 0 || len(names) != 1 {
		return "", fmt.Errorf("certificate has %d names: %w", len(names), ErrIdentity)
	}
	const tagURI = 6 // uniformResourceIdentifier in GeneralName
	name := names[0]
	if name.Class != asn1.ClassContextSpecific || name.Tag != tagURI || name.IsCompound {
		return "", fmt.Errorf("the certificate's name is not a URI: %w", ErrIdentity)
	}
	return string(name.Bytes), nil
}

// CertificateIdentity returns the identity in a certificate. It does not check the certificate's
// signature or validity in time.
func CertificateIdentity(cert *x509.Certificate) (Identity, error) {
	uri, err := onlyURI(cert)
	if err != nil {
		return Identity{}, err
	}
	id, err := ParseURI(uri)
	if err != nil {
		return Identity{}, err
	}
	if cert.IsCA {
		return Identity{}, fmt.Errorf("%s: a CA certificate cannot be a node's", id)
	}
	id.NotAfter, id.Key = cert.NotAfter, PinOf(cert)
	return id, nil
}

// ErrNoCertificate reports that the peer presented no certificate.
var ErrNoCertificate = errors.New("the peer presented no certificate")

// IdentityOf returns the identity that the peer of a connection proved. The
// connection must have been made with a configuration of [Store], which
// verifies before the handshake ends; IdentityOf itself verifies no signature.
func IdentityOf(cs tls.ConnectionState) (Identity, error) {
	if len(cs.PeerCertificates) == 0 {
		return Identity{}, ErrNoCertificate
	}
	return CertificateIdentity(cs.PeerCertificates[0])
}
