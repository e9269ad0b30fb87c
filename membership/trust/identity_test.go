package trust

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"
)

func TestIdentityURIParsesBack(t *testing.T) {
	for _, host := range []bool{false, true} {
		id := Identity{Cluster: cluster, Node: uuid(1), Host: host}
		got, err := ParseURI(id.URI())
		if err != nil || got != id {
			t.Errorf("ParseURI(%s) = %v, %v, want it back", id.URI(), got, err)
		}
	}
}

var (
	goodURI = Identity{Cluster: cluster, Node: uuid(1)}.URI()
	badURIs = []string{
		"",
		"fabric://",
		strings.ToUpper(goodURI),
		strings.Replace(goodURI, "ab", "AB", 1),
		strings.Replace(goodURI, "fabric", "spiffe", 1),
		strings.Replace(goodURI, "fabric", "Fabric", 1),
		strings.Replace(goodURI, "/node/", "/Node/", 1),
		strings.Replace(goodURI, "/node/", "/host/", 1),
		strings.Replace(goodURI, "/node/", "//node/", 1),
		strings.Replace(goodURI, "-", "%2d", 1),
		strings.Replace(goodURI, "//", "//user@", 1),
		strings.Replace(goodURI, "/node", ":1/node", 1),
		goodURI + "/",
		goodURI + "#",
		goodURI + "?",
		goodURI + "?x",
		goodURI + "/hosts",
		goodURI + "/host/",
		goodURI + "/host/host",
		goodURI + "\x00",
		" " + goodURI,
		goodURI[:len(goodURI)-1],
		Identity{Cluster: cluster}.URI(),
		Identity{Node: uuid(1)}.URI(),
		strings.Repeat("fabric://", 10000),
	}
)

func TestParseURIRejectsEverythingElse(t *testing.T) {
	for _, s := range badURIs {
		id, err := ParseURI(s)
		wantError(t, "ParseURI("+shorten(s)+")", err, ErrIdentity)
		if id != (Identity{}) {
			t.Errorf("ParseURI(%s) returns %v beside its error", shorten(s), id)
		}
		if len(err.Error()) > 400 {
			t.Errorf("an error of %d bytes repeats hostile input", len(err.Error()))
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add(goodURI)
	f.Add(goodURI + "/host")
	for _, s := range badURIs {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseURI(s); err == nil && id.URI() != s {
			t.Errorf("ParseURI(%q) accepts what URI does not return: %q", s, id.URI())
		}
	})
}

// withNames makes a certificate whose name extensions have these values.
func withNames(t testing.TB, isCA bool, values ...[]byte) *x509.Certificate {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: start, NotAfter: start.Add(day), IsCA: isCA, BasicConstraintsValid: true}
	for _, v := range values {
		template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: oidSAN, Value: v})
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// names encodes general names, each a tag and a value.
func names(t testing.TB, pairs ...any) []byte {
	t.Helper()
	var list []asn1.RawValue
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: pairs[i].(int), Bytes: []byte(pairs[i+1].(string))})
	}
	b, err := asn1.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCertificateIdentityIsExact(t *testing.T) {
	const dns, uri, registered = 2, 6, 8
	if id, err := CertificateIdentity(withNames(t, false, names(t, uri, goodURI))); err != nil || id.URI() != goodURI || !id.NotAfter.Equal(start.Add(day)) {
		t.Fatalf("identity %v, %v, want %s until the certificate's end", id, err, goodURI)
	}
	for what, cert := range map[string]*x509.Certificate{
		"no name":                      withNames(t, false),
		"an empty list":                withNames(t, false, names(t)),
		"two URIs":                     withNames(t, false, names(t, uri, goodURI, uri, goodURI)),
		"a DNS name beside":            withNames(t, false, names(t, uri, goodURI, dns, "a.example")),
		"a DNS name only":              withNames(t, false, names(t, dns, "a.example")),
		"a kind that x509 passes over": withNames(t, false, names(t, uri, goodURI, registered, "\x2a\x03")),
		"an empty fragment":            withNames(t, false, names(t, uri, goodURI+"#")),
		"upper case":                   withNames(t, false, names(t, uri, strings.Replace(goodURI, "ab", "AB", 1))),
		"other scheme":                 withNames(t, false, names(t, uri, "https://a.example/")),
	} {
		id, err := CertificateIdentity(cert)
		wantError(t, what, err, ErrIdentity)
		if id != (Identity{}) {
			t.Errorf("%s: identity %v beside the error", what, id)
		}
	}
	_, err := CertificateIdentity(withNames(t, true, names(t, uri, goodURI)))
	wantError(t, "a CA with a node's name", err, nil, "CA certificate")
}

func FuzzCertificate(f *testing.F) {
	ca := mustCA(f, cluster, start)
	f.Add(ca.cert.Raw)
	f.Add(mustIssue(f, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, start).Chain[0].Raw)
	f.Add(make([]byte, maxCertificateBytes+1))
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := parseCertificate(der)
		if err != nil {
			return
		}
		if len(der) > maxCertificateBytes {
			t.Fatalf("parsed a certificate of %d bytes", len(der))
		}
		if id, err := CertificateIdentity(cert); err == nil && (id.Cluster.IsZero() || id.Node.IsZero() || cert.IsCA) {
			t.Errorf("identity %v", id)
		}
	})
}
