package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

func TestCAIssuesOnlyTheIdentityItWasGiven(t *testing.T) {
	ca := mustCA(t, cluster, start)
	// A request that asks for the host's name, DNS names and to be a CA.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wish, err := url.Parse(Identity{Cluster: cluster, Node: uuid(9), Host: true}.URI())
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "host"},
		URIs:     []*url.URL{wish},
		DNSNames: []string{"host.example"},
		ExtraExtensions: []pkix.Extension{{
			Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}, // CA: true
		}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	want := Identity{Cluster: cluster, Node: uuid(1)}
	der, err := ca.Issue(csr, want, start, day)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := NewCredentials(key, der, [][]byte{ca.cert.Raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	cert := creds.Chain[0]
	if id, err := creds.Identity(); err != nil || !id.Same(want) {
		t.Errorf("identity %v, %v, want %v", id, err, want)
	}
	if cert.IsCA || len(cert.DNSNames) != 0 || cert.Subject.CommonName != "" {
		t.Errorf("the certificate took over wishes: CA %v, names %v, subject %q", cert.IsCA, cert.DNSNames, cert.Subject)
	}
	if !cert.NotAfter.Equal(start.Add(day)) {
		t.Errorf("valid until %v, want %v", cert.NotAfter, start.Add(day))
	}
	if at := creds.RenewAt(); at.Before(start.Add(day/2)) || at.After(start.Add(day*3/4)) {
		t.Errorf("renew at %v, want two thirds of the day", at)
	}
}

func TestCARefuses(t *testing.T) {
	ca := mustCA(t, cluster, start)
	csr, _, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weakCSR, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	forged := append([]byte(nil), csr...)
	forged[len(forged)-1] ^= 1
	id := Identity{Cluster: cluster, Node: uuid(1)}
	for _, tt := range []struct {
		what     string
		csr      []byte
		id       Identity
		now      time.Time
		validity time.Duration
		cause    error
		words    string
	}{
		{"another cluster", csr, Identity{Cluster: uuid(2), Node: uuid(1)}, start, day, ErrWrongCluster, ""},
		{"no node", csr, Identity{Cluster: cluster}, start, day, nil, "zero UUID"},
		{"no validity", csr, id, start, 0, nil, "validity"},
		{"an expired CA", csr, id, start.Add(CAValidity + 1), day, ErrExpired, "CA's"},
		{"a huge request", make([]byte, maxCSRBytes+1), id, start, day, ErrTooBig, ""},
		{"garbage", []byte("garbage"), id, start, day, nil, "request"},
		{"a forged signature", forged, id, start, day, nil, "request"},
		{"a weak key", weakCSR, id, start, day, ErrKey, ""},
	} {
		der, err := ca.Issue(tt.csr, tt.id, tt.now, tt.validity)
		wantError(t, tt.what, err, tt.cause, tt.words)
		if der != nil {
			t.Errorf("%s: a certificate beside the error", tt.what)
		}
	}
	_, err = NewCA(addr.UUID{}, start)
	wantError(t, "a CA of no cluster", err, nil, "zero UUID")
}

func TestCertificateNeverOutlivesItsCA(t *testing.T) {
	ca := mustCA(t, cluster, start)
	c, err := IssueCredentials(ca, Identity{Cluster: cluster, Node: uuid(1)}, start, 2*CAValidity)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Chain[0].NotAfter.Equal(ca.cert.NotAfter) {
		t.Errorf("valid until %v, want the CA's %v", c.Chain[0].NotAfter, ca.cert.NotAfter)
	}
}

func TestCAEncodeRoundTrip(t *testing.T) {
	ca := mustCA(t, cluster, start)
	b, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := LoadCA(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Cluster() != cluster || got.Pin() != ca.Pin() {
		t.Errorf("cluster %s, want %s; pins equal: %v", got.Cluster(), cluster, got.Pin() == ca.Pin())
	}
	// Certificates of the loaded CA are accepted by holders of the first one's root.
	c := mustIssue(t, got, Identity{Cluster: cluster, Node: uuid(1)}, start)
	c.Roots[0] = ca.cert
	if _, err := c.Check(start); err != nil {
		t.Error(err)
	}

	other := mustCA(t, cluster, start)
	otherKey, err := EncodeKey(other.key)
	if err != nil {
		t.Fatal(err)
	}
	certOnly := string(b[:strings.Index(string(b), "-----BEGIN PRIVATE")])
	leaf := mustIssue(t, ca, Identity{Cluster: cluster, Node: uuid(1)}, start)
	leafPEM, err := leaf.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"nothing":           "",
		"no key":            certOnly,
		"another CA's key":  certOnly + string(otherKey),
		"a node's":          string(leafPEM),
		"two keys":          string(b) + string(otherKey),
		"more than allowed": strings.Repeat(" ", maxPEMBytes) + string(b),
	} {
		if _, err := LoadCA([]byte(bad)); err == nil {
			t.Errorf("LoadCA accepts %s", what)
		}
	}
}

func TestCredentialsRoundTrip(t *testing.T) {
	ca := mustCA(t, cluster, start)
	c := mustIssue(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, start)
	c.Roots = append(c.Roots, mustCA(t, cluster, start).cert)
	b, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCredentials(b)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := got.Check(start); err != nil || !id.Host || id.Node != uuid(1) {
		t.Errorf("identity %v, %v", id, err)
	}
	if len(got.Chain) != 1 || len(got.Roots) != 2 || PinOf(got.Roots[0]) != ca.Pin() {
		t.Errorf("%d in the chain and %d roots, want 1 and 2 in the old order", len(got.Chain), len(got.Roots))
	}
}

func FuzzParseCredentials(f *testing.F) {
	c := mustIssue(f, mustCA(f, cluster, start), Identity{Cluster: cluster, Node: uuid(1)}, start)
	b, err := c.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCredentials(b)
		if err != nil {
			return
		}
		if len(c.Chain)+len(c.Roots) > maxChain || c.Key == nil {
			t.Errorf("%d certificates, key %v", len(c.Chain)+len(c.Roots), c.Key)
		}
		_, _ = c.Check(start) // must not panic, whatever was parsed
	})
}

func TestShortLivedCertificateIsRenewedWithinItsIncarnation(t *testing.T) {
	ca, err := NewCA(addr.UUID{1}, start)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := IssueCredentials(ca, Identity{Cluster: addr.UUID{1}, Node: addr.UUID{2}}, start, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if at := creds.RenewAt().Sub(start); at < 30*time.Second || at > 45*time.Second {
		t.Errorf("a certificate of a minute is renewed after %v, want about 2/3 of its incarnation", at)
	}
}
