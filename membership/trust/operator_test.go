package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"crypto/x509"
)

// write puts the credentials into the three files of an operator.
func (f Files) write(t testing.TB, c Credentials) {
	t.Helper()
	key, err := EncodeKey(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, encodeCertificates(c.Roots), encodeCertificates(c.Chain), key)
}

func (f Files) put(t testing.TB, ca, cert, key []byte) {
	t.Helper()
	for path, b := range map[string][]byte{f.CA: ca, f.Cert: cert, f.Key: key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func tempFiles(t testing.TB) Files {
	dir := t.TempDir()
	return Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}

func TestOperatorFilesRotate(t *testing.T) {
	ca := mustCA(t, cluster, start)
	id := Identity{Cluster: cluster, Node: uuid(1), Host: true}
	f := tempFiles(t)
	f.write(t, mustIssue(t, ca, id, start))
	op, err := LoadOperator(f, at(start))
	if err != nil {
		t.Fatal(err)
	}
	if got := op.Store().Identity(); !got.Same(id) {
		t.Errorf("identity %v, want %v", got, id)
	}
	if changed, err := op.Reload(); changed || err != nil {
		t.Errorf("reload of the same files: %v, %v", changed, err)
	}

	next := mustIssue(t, ca, id, start)
	if err := os.WriteFile(f.Cert, encodeCertificates(next.Chain), 0o600); err != nil {
		t.Fatal(err)
	}
	before := op.Store().Credentials().Chain[0]
	_, err = op.Reload()
	wantError(t, "only the certificate replaced yet", err, nil, "does not belong", f.Key)
	if op.Store().Credentials().Chain[0] != before {
		t.Fatal("a failed reload changed the store")
	}
	f.write(t, next)
	if changed, err := op.Reload(); !changed || err != nil {
		t.Fatalf("reload: %v, %v", changed, err)
	}
	if got := op.Store().Credentials().Chain[0]; !got.Equal(next.Chain[0]) {
		t.Error("the store does not have the new certificate")
	}
	f.write(t, mustIssue(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, start))
	_, err = op.Reload()
	wantError(t, "another node's files", err, nil, "want "+id.URI())
}

func TestOperatorFilesAreChecked(t *testing.T) {
	ca := mustCA(t, cluster, start.Add(-10*day))
	id := Identity{Cluster: cluster, Node: uuid(1)}
	good := mustIssue(t, ca, id, start)
	key, err := EncodeKey(good.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert, roots := encodeCertificates(good.Chain), encodeCertificates(good.Roots)
	other := mustIssue(t, ca, id, start)
	otherKey, err := EncodeKey(other.Key)
	if err != nil {
		t.Fatal(err)
	}
	expired := mustIssue(t, ca, id, start.Add(-3*day))
	expiredKey, err := EncodeKey(expired.Key)
	if err != nil {
		t.Fatal(err)
	}
	otherRoot := encodeCertificates([]*x509.Certificate{mustCA(t, cluster, start).cert})
	for _, tt := range []struct {
		what          string
		ca, cert, key []byte
		cause         error
		words         string
	}{
		{"a key of another certificate", roots, cert, otherKey, nil, "the private key does not belong"},
		{"no key", roots, cert, cert, ErrKey, "--key"},
		{"no certificate", roots, key, key, nil, "--cert"},
		{"no CA", nil, cert, key, nil, "--ca"},
		{"an expired certificate", roots, encodeCertificates(expired.Chain), expiredKey, ErrExpired, "since 1999-12-30T00:00:00Z"},
		{"another CA", otherRoot, cert, key, ErrWrongCA, "--ca"},
		{"a node's certificate as CA", cert, cert, key, nil, "not a CA's"},
		{"a CA's certificate as node's", roots, roots, key, nil, "does not belong"},
		{"a huge file", make([]byte, maxPEMBytes+1), cert, key, ErrTooBig, "ca.pem"},
	} {
		f := tempFiles(t)
		f.put(t, tt.ca, tt.cert, tt.key)
		_, err := LoadOperator(f, at(start))
		wantError(t, tt.what, err, tt.cause, tt.words)
	}

	f := tempFiles(t)
	f.write(t, good)
	missing := f
	missing.Key = filepath.Join(t.TempDir(), "none.pem")
	_, err = LoadOperator(missing, at(start))
	wantError(t, "a missing file", err, fs.ErrNotExist, "--key", "none.pem")
	missing.Key = ""
	_, err = LoadOperator(missing, at(start))
	wantError(t, "a flag that is not set", err, nil, "go together")
	if _, err := LoadOperator(f, func() time.Time { return start }); errors.Is(err, fs.ErrNotExist) || err != nil {
		t.Errorf("good files: %v", err)
	}
}

func TestOperatorCertificateWithAWrongNameIsRefused(t *testing.T) {
	cert := withNames(t, false, names(t, 2, "node1.example"))
	_, err := Credentials{Chain: []*x509.Certificate{cert}, Key: mustIssue(t, mustCA(t, cluster, start), Identity{Cluster: cluster, Node: uuid(1)}, start).Key}.Identity()
	wantError(t, "a DNS name", err, ErrIdentity, "fabric://CLUSTER-UUID/node/NODE-UUID")
}
