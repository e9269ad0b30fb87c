package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// start is the time in most tests: that of a new synctest bubble.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func uuid(n byte) addr.UUID { return addr.UUID{0: 0xab, 15: n} }

var cluster = uuid(0xcc)

func mustCA(t testing.TB, cluster addr.UUID, now time.Time) *CA {
	t.Helper()
	ca, err := NewCA(cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustIssue(t testing.TB, ca *CA, id Identity, now time.Time) Credentials {
	t.Helper()
	c, err := IssueCredentials(ca, id, now, day)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustStore(t testing.TB, ca *CA, id Identity, now func() time.Time) *Store {
	t.Helper()
	s, err := NewStore(mustIssue(t, ca, id, now()), now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A meeting is the two ends of a handshake, and the error of each.
type meeting struct {
	client, server       *tls.Conn
	clientErr, serverErr error
}

// meet shakes hands over a pipe. The client reads a byte afterwards, because in
// TLS 1.3 it learns only then that the server refused its certificate.
func meet(t testing.TB, client, server *tls.Config) meeting {
	t.Helper()
	a, b := net.Pipe()
	m := meeting{client: tls.Client(a, client), server: tls.Server(b, server)}
	t.Cleanup(func() { a.Close(); b.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if m.serverErr = m.server.HandshakeContext(ctx); m.serverErr == nil {
			_, m.serverErr = m.server.Write([]byte{1})
		} else {
			b.Close()
		}
	}()
	if m.clientErr = m.client.HandshakeContext(ctx); m.clientErr == nil {
		_, m.clientErr = m.client.Read(make([]byte, 1))
	} else {
		a.Close()
	}
	<-done
	return m
}

// wantError checks that err has the cause and names the reason in words.
func wantError(t testing.TB, what string, err, cause error, words ...string) {
	t.Helper()
	if err == nil || cause != nil && !errors.Is(err, cause) {
		t.Fatalf("%s: error %v, want one that is %v", what, err, cause)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %q does not say %q", what, err, w)
		}
	}
}
