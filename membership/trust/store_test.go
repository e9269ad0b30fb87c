package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

const alpn = "fabricd/1"

func TestLinkIsMutual(t *testing.T) {
	ca := mustCA(t, cluster, start)
	host := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, at(start))
	node := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start))

	m := meet(t, node.ClientTLS(ExpectHost, alpn), host.ServerTLS(alpn))
	if m.clientErr != nil || m.serverErr != nil {
		t.Fatalf("client %v, server %v", m.clientErr, m.serverErr)
	}
	seen, err := IdentityOf(m.client.ConnectionState())
	if err != nil || !seen.Same(host.Identity()) || !seen.NotAfter.Equal(start.Add(day)) {
		t.Errorf("the client sees %v, %v, want %v", seen, err, host.Identity())
	}
	seen, err = IdentityOf(m.server.ConnectionState())
	if err != nil || !seen.Same(node.Identity()) {
		t.Errorf("the server sees %v, %v, want %v", seen, err, node.Identity())
	}
	if cs := m.client.ConnectionState(); cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != alpn {
		t.Errorf("version %x, protocol %q", cs.Version, cs.NegotiatedProtocol)
	}
}

// forge returns a store that NewStore would refuse.
func forge(t testing.TB, creds Credentials, now func() time.Time) *Store {
	t.Helper()
	id, err := creds.Identity()
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{now: now}
	s.set(creds, id)
	return s
}

func TestHandshakeIsRefusedWithTheReason(t *testing.T) {
	ca := mustCA(t, cluster, start.Add(-10*day))
	good := Identity{Cluster: cluster, Node: uuid(1), Host: true}
	us := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start))
	// A CA of the wrong cluster whose root we trust all the same.
	foreign := mustCA(t, uuid(7), start)
	both := us.Credentials()
	both.Roots = append([]*x509.Certificate{}, ca.cert, foreign.cert)
	usBoth, err := NewStore(both, at(start))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what   string
		us     *Store
		them   *Store
		expect func(Identity) error
		cause  error
		words  string
	}{
		{"wrong CA", us, mustStore(t, mustCA(t, cluster, start), good, at(start)), nil, ErrWrongCA, good.URI()},
		{"expired", us, forge(t, mustIssue(t, ca, good, start.Add(-3*day)), at(start.Add(-3*day))), nil, ErrExpired, "since 1999-12-30T00:00:00Z"},
		{"not yet valid", us, forge(t, mustIssue(t, ca, good, start.Add(2*day)), at(start.Add(2*day))), nil, ErrNotYetValid, "until 2000-01-01T23:00:00Z"},
		{"wrong cluster", usBoth, mustStore(t, foreign, Identity{Cluster: uuid(7), Node: uuid(1)}, at(start)), nil, ErrWrongCluster, cluster.String()},
		{"not the host", us, mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(3)}, at(start)), ExpectHost, ErrNotHost, "/node/"},
		{"another node", us, mustStore(t, ca, good, at(start)), ExpectNode(uuid(9)), nil, "instead of node " + uuid(9).String()},
	} {
		t.Run(tt.what, func(t *testing.T) {
			theirs := tt.them.ServerTLS(alpn)
			theirs.VerifyConnection = nil // they would refuse us, too
			m := meet(t, tt.us.ClientTLS(tt.expect, alpn), theirs)
			wantError(t, "dialing them", m.clientErr, tt.cause, tt.words)

			if tt.expect != nil {
				return // only a dialer expects a certain node
			}
			own := tt.them.ClientTLS(nil, alpn)
			own.VerifyConnection = nil
			m = meet(t, own, tt.us.ServerTLS(alpn))
			wantError(t, "accepting them", m.serverErr, tt.cause, tt.words)
			if m.clientErr == nil {
				t.Error("the refused client received nothing")
			}
			explained := tt.them.Explain(m.clientErr)
			wantError(t, "their side", explained, m.clientErr, "the peer refused this node", tt.them.Identity().URI())
		})
	}
}

func TestExplainLeavesOtherErrorsAlone(t *testing.T) {
	s := mustStore(t, mustCA(t, cluster, start), Identity{Cluster: cluster, Node: uuid(1)}, at(start))
	if err := s.Explain(io.EOF); err != io.EOF {
		t.Errorf("Explain(EOF) = %v", err)
	}
}

func TestHandshakeNeedsCertificateAndTLS13(t *testing.T) {
	ca := mustCA(t, cluster, start)
	host := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, at(start))
	node := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start))

	bare := node.ClientTLS(nil, alpn)
	bare.GetClientCertificate = nil
	if m := meet(t, bare, host.ServerTLS(alpn)); m.serverErr == nil || m.clientErr == nil {
		t.Errorf("without a certificate: client %v, server %v", m.clientErr, m.serverErr)
	}
	old := node.ClientTLS(nil, alpn)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if m := meet(t, old, host.ServerTLS(alpn)); m.serverErr == nil || m.clientErr == nil {
		t.Errorf("with TLS 1.2: client %v, server %v", m.clientErr, m.serverErr)
	}
	if m := meet(t, node.ClientTLS(nil, JoinALPN), host.ServerTLS(alpn)); m.serverErr == nil {
		t.Error("a link accepts the protocol of joining")
	}
}

func TestNoResumption(t *testing.T) {
	ca := mustCA(t, cluster, start)
	host := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, at(start))
	node := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start))
	client := node.ClientTLS(nil, alpn)
	// Even a client that wants to resume cannot.
	client.SessionTicketsDisabled = false
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	client.ServerName = "host"
	server := host.ServerTLS(alpn)
	for i := range 3 {
		m := meet(t, client, server)
		if m.clientErr != nil || m.serverErr != nil {
			t.Fatalf("client %v, server %v", m.clientErr, m.serverErr)
		}
		if m.client.ConnectionState().DidResume {
			t.Fatalf("connection %d resumed", i)
		}
	}
}

func TestExpiryIsJudgedByTheGivenClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ca := mustCA(t, cluster, time.Now())
		host := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, time.Now)
		node := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, time.Now)
		time.Sleep(day - time.Minute)
		m := meet(t, node.ClientTLS(nil, alpn), host.ServerTLS(alpn))
		if m.clientErr != nil || m.serverErr != nil {
			t.Fatalf("a minute before the end: client %v, server %v", m.clientErr, m.serverErr)
		}
		time.Sleep(time.Hour)
		m = meet(t, node.ClientTLS(nil, alpn), host.ServerTLS(alpn))
		wantError(t, "an hour later", m.serverErr, ErrExpired, "own certificate")
		wantError(t, "Check", node.Check(), ErrExpired, "since", "ago")
		if m.clientErr == nil {
			t.Error("the client received nothing")
		}
	})
}

func TestReplaceRotatesKeyAndRootsWithoutReset(t *testing.T) {
	oldCA, newCA := mustCA(t, cluster, start), mustCA(t, cluster, start)
	hostID := Identity{Cluster: cluster, Node: uuid(1), Host: true}
	nodeID := Identity{Cluster: cluster, Node: uuid(2)}
	host := mustStore(t, oldCA, hostID, at(start))
	node := mustStore(t, oldCA, nodeID, at(start))
	server, client := host.ServerTLS(alpn), node.ClientTLS(nil, alpn) // made once
	first := meet(t, client, server)
	if first.clientErr != nil || first.serverErr != nil {
		t.Fatal(first.clientErr, first.serverErr)
	}

	// Step 1: both trust both CAs. Step 2: both have new certificates.
	// Step 3: no node trusts the old CA.
	roots := [][]*x509.Certificate{{oldCA.cert, newCA.cert}, {oldCA.cert, newCA.cert}, {newCA.cert}}
	for step, pool := range roots {
		for _, s := range []*Store{host, node} {
			creds := s.Credentials()
			if step == 1 {
				creds = mustIssue(t, newCA, s.Identity(), start)
			}
			creds.Roots = pool
			if err := s.Replace(creds); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			if m := meet(t, client, server); m.clientErr != nil || m.serverErr != nil {
				t.Fatalf("step %d: client %v, server %v", step, m.clientErr, m.serverErr)
			}
		}
	}
	stale := mustStore(t, oldCA, nodeID, at(start))
	m := meet(t, stale.ClientTLS(nil, alpn), server)
	if m.clientErr == nil || m.serverErr == nil {
		t.Errorf("a certificate of the old CA still works: client %v, server %v", m.clientErr, m.serverErr)
	}

	// The connection from before all this still carries data.
	go func() { _, _ = first.client.Write([]byte("still here")) }()
	b := make([]byte, 10)
	if _, err := io.ReadFull(first.server, b); err != nil || string(b) != "still here" {
		t.Errorf("the old connection: %q, %v", b, err)
	}
}

func TestReplaceRefusesAnotherIdentity(t *testing.T) {
	ca := mustCA(t, cluster, start.Add(-10*day))
	id := Identity{Cluster: cluster, Node: uuid(2)}
	s := mustStore(t, ca, id, at(start))
	before := s.Credentials()
	for what, creds := range map[string]Credentials{
		"another node":    mustIssue(t, ca, Identity{Cluster: cluster, Node: uuid(3)}, start),
		"another role":    mustIssue(t, ca, Identity{Cluster: cluster, Node: uuid(2), Host: true}, start),
		"another cluster": mustIssue(t, mustCA(t, uuid(7), start), Identity{Cluster: uuid(7), Node: uuid(2)}, start),
		"nothing":         {},
		"expired":         mustIssue(t, ca, id, start.Add(-3*day)),
	} {
		if err := s.Replace(creds); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if s.Credentials().Chain[0] != before.Chain[0] {
			t.Fatalf("%s: the store changed", what)
		}
	}
}

func TestStatementVerifiesOnlyAsSigned(t *testing.T) {
	ca := mustCA(t, cluster, start)
	now := start
	clock := func() time.Time { return now }
	host := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, clock)
	node := mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(2)}, clock)
	lease := []byte("ID 7, generation 3")
	st, err := host.Sign("lease", lease)
	if err != nil {
		t.Fatal(err)
	}
	now = start.Add(30 * day) // the host is long gone, its certificate expired
	got, by, signed, err := node.VerifyHost("lease", st)
	if err != nil || string(got) != string(lease) || by.Node != uuid(1) || !signed.Equal(start) {
		t.Fatalf("%q by %v at %v, %v", got, by, signed, err)
	}
	for i := range st {
		bad := append([]byte(nil), st...)
		bad[i] ^= 1
		if got, _, _, err := node.VerifyHost("lease", bad); err == nil || got != nil {
			t.Fatalf("byte %d flipped: accepted", i)
		}
	}
	for n := range st {
		if _, _, _, err := node.VerifyHost("lease", st[:n]); err == nil {
			t.Fatalf("cut to %d bytes: accepted", n)
		}
	}
	_, _, _, err = node.VerifyHost("verdict", st)
	wantError(t, "another purpose", err, ErrStatement)
	now = start
	byNode, err := node.Sign("lease", lease)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _, err = host.VerifyHost("lease", byNode)
	wantError(t, "signed by a plain node", err, ErrNotHost)
	byOther, err := mustStore(t, mustCA(t, cluster, start), Identity{Cluster: cluster, Node: uuid(1), Host: true}, clock).Sign("lease", lease)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _, err = node.VerifyHost("lease", byOther)
	wantError(t, "signed by another CA's host", err, ErrWrongCA)
	_, err = host.Sign("lease", make([]byte, MaxStatement+1))
	wantError(t, "too long", err, ErrTooBig)
}

func TestStatementWithAnECDSAKey(t *testing.T) {
	ca := mustCA(t, cluster, start)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := ca.Issue(csr, Identity{Cluster: cluster, Node: uuid(1), Host: true}, start, day)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := NewCredentials(key, der, [][]byte{ca.cert.Raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(creds, at(start))
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Sign("lease", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _, err := s.VerifyHost("lease", st); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzStatement(f *testing.F) {
	s := mustStore(f, mustCA(f, cluster, start), Identity{Cluster: cluster, Node: uuid(1), Host: true}, at(start))
	st, err := s.Sign("lease", []byte("message"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(st)
	f.Add(st[:40])
	f.Add(make([]byte, maxStatementBytes+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := parseStatement(b)
		if err != nil {
			if !errors.Is(err, ErrStatement) && !errors.Is(err, ErrTooBig) {
				t.Errorf("error %v", err)
			}
			return
		}
		if len(parsed.message) > MaxStatement || len(parsed.chain) > maxChain {
			t.Errorf("%d bytes, %d certificates", len(parsed.message), len(parsed.chain))
		}
	})
}
