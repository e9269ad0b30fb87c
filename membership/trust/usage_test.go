package trust

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
)

// signAs makes a certificate below ca from a template.
func signAs(t testing.TB, template *x509.Certificate, ca *CA) (*x509.Certificate, Credentials) {
	t.Helper()
	_, key, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, Credentials{Key: key, Chain: []*x509.Certificate{cert}, Roots: []*x509.Certificate{ca.cert}}
}

func TestCertificatesMustAllowBothDirections(t *testing.T) {
	ca := mustCA(t, cluster, start)
	us := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start))
	for _, tt := range []struct {
		only   x509.ExtKeyUsage
		accept bool // whether we may accept its connection, or dial it
	}{
		{x509.ExtKeyUsageServerAuth, true},
		{x509.ExtKeyUsageClientAuth, false},
	} {
		template, err := nodeTemplate(Identity{Cluster: cluster, Node: uuid(1)}, start, day)
		if err != nil {
			t.Fatal(err)
		}
		template.ExtKeyUsage = []x509.ExtKeyUsage{tt.only}
		_, creds := signAs(t, template, ca)
		if _, err := creds.Check(start); err == nil {
			t.Errorf("credentials for usage %v only are accepted as one's own", tt.only)
		}
		them := forge(t, creds, at(start))
		m := meet(t, them.ClientTLS(nil, alpn), us.ServerTLS(alpn))
		refused := m.serverErr
		if !tt.accept {
			m = meet(t, us.ClientTLS(nil, alpn), them.ServerTLS(alpn))
			refused = m.clientErr
		}
		if refused == nil || !strings.Contains(refused.Error(), "usage") {
			t.Errorf("usage %v only: error %v, want one about its usage", tt.only, refused)
		}
	}
}

// TestOperatorIntermediate joins a node below an operator's intermediate CA
// with one that knows only the root.
func TestOperatorIntermediate(t *testing.T) {
	root := mustCA(t, cluster, start)
	// NewCA forbids CAs below it; an operator's root need not.
	template := *root.cert
	template.MaxPathLen, template.MaxPathLenZero = -1, false
	template.Subject = pkix.Name{CommonName: "an operator's root"}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, root.key.Public(), root.key)
	if err != nil {
		t.Fatal(err)
	}
	if root.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}

	middleTemplate := template
	middleTemplate.Subject, middleTemplate.SerialNumber = pkix.Name{CommonName: "an intermediate"}, big.NewInt(2)
	middleCert, middle := signAs(t, &middleTemplate, root)
	between := &CA{cluster: cluster, key: middle.Key, cert: middleCert}
	csr, key, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	der, err = between.Issue(csr, Identity{Cluster: cluster, Node: uuid(1), Host: true}, start, day)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	creds := Credentials{Key: key, Chain: []*x509.Certificate{leaf, middleCert}, Roots: []*x509.Certificate{root.cert}}
	store, err := NewStore(creds, at(start))
	if err != nil {
		t.Fatal(err)
	}
	if m := meet(t, store.ClientTLS(ExpectHost, alpn), store.ServerTLS(alpn)); m.clientErr != nil || m.serverErr != nil {
		t.Errorf("with the intermediate: client %v, server %v", m.clientErr, m.serverErr)
	}
	w := joinWorld{root, store, NewTokenStore()}
	tok := mustToken(t, w.tokens, root, TokenOptions{})
	w.connect(t, tok) // the token pins the root
	creds.Chain = creds.Chain[:1]
	if _, err := creds.Check(start); !errors.Is(err, ErrWrongCA) {
		t.Errorf("without the intermediate: %v, want %v", err, ErrWrongCA)
	}
}
