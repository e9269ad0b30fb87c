package trust

import (
	"crypto/tls"
	"encoding/base32"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func mustToken(t testing.TB, s *TokenStore, ca *CA, opts TokenOptions) Token {
	t.Helper()
	tok, err := s.Create(ca.Cluster(), ca.Pin(), opts, start)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTokenTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := Token{
			Cluster: addr.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "cluster")),
			ID:      TokenID(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "id")),
			Pin:     Pin(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "pin")),
			secret:  [secretBytes]byte(rapid.SliceOfN(rapid.Byte(), secretBytes, secretBytes).Draw(t, "secret")),
		}
		got, err := ParseToken(tok.Text())
		if tok.Cluster.IsZero() {
			if !errors.Is(err, ErrTokenMalformed) {
				t.Fatalf("a token of no cluster: %v", err)
			}
			return
		}
		if err != nil || got != tok {
			t.Fatalf("ParseToken(%q) = %v, %v, want it back", tok.Text(), got, err)
		}
		if padded, err := ParseToken(" \t" + tok.Text() + "\r\n"); err != nil || padded != tok {
			t.Fatalf("with white space around it: %v", err)
		}
	})
}

func TestEveryMistypedTokenIsNoticed(t *testing.T) {
	text := mustToken(t, NewTokenStore(), mustCA(t, cluster, start), TokenOptions{}).Text()
	for i := range text {
		for _, c := range []byte("a2z7A1-\n\x00\xff") {
			if text[i] == c {
				continue
			}
			bad := text[:i] + string([]byte{c}) + text[i+1:]
			if strings.TrimSpace(bad) == text {
				continue
			}
			tok, err := ParseToken(bad)
			if err == nil || tok != (Token{}) {
				t.Fatalf("character %d replaced by %q: accepted", i, c)
			}
			if strings.Contains(err.Error(), text[20:40]) {
				t.Fatalf("the error shows the token: %v", err)
			}
		}
	}
	for n := range text {
		if _, err := ParseToken(text[:n]); err == nil {
			t.Fatalf("cut to %d characters: accepted", n)
		}
	}
}

func TestTokenErrorsSayWhatIsWrong(t *testing.T) {
	text := mustToken(t, NewTokenStore(), mustCA(t, cluster, start), TokenOptions{}).Text()
	for _, tt := range []struct {
		what, text string
		cause      error
		words      string
	}{
		{"empty", "", ErrTokenMalformed, "want fab1-"},
		{"something else", "eyJhbGciOi", ErrTokenMalformed, "want fab1-"},
		{"a version to come", "fab2-" + text[5:], ErrTokenVersion, "version 2, this fabricd reads version 1"},
		{"an odd version", "fab01-" + text[5:], ErrTokenMalformed, "want fab1-"},
		{"cut short", text[:60], ErrTokenMalformed, "55 characters"},
		{"too long", text + "a", ErrTokenMalformed, "129 characters"},
		{"upper case", "fab1-" + strings.ToUpper(text[5:]), ErrTokenMalformed, "a-z and 2-7"},
		{"a space inside", text[:50] + " " + text[51:], ErrTokenMalformed, "a-z and 2-7"},
		{"two characters swapped", "fab1-" + swapped(text[5:]), ErrTokenChecksum, "mistyped"},
	} {
		_, err := ParseToken(tt.text)
		wantError(t, tt.what, err, tt.cause, tt.words)
	}
}

// swapped exchanges the first two neighbours that differ.
func swapped(s string) string {
	for i := 1; i < len(s); i++ {
		if s[i] != s[i-1] {
			return s[:i-1] + s[i:i+1] + s[i-1:i] + s[i+1:]
		}
	}
	return s
}

func FuzzParseToken(f *testing.F) {
	text := mustToken(f, NewTokenStore(), mustCA(f, cluster, start), TokenOptions{}).Text()
	f.Add(text)
	f.Add(text[:40])
	f.Add("fab1-" + strings.Repeat("a", base32.StdEncoding.EncodedLen(tokenBytes)))
	f.Add("fab2-x")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err == nil && tok.Text() != strings.TrimSpace(s) {
			t.Errorf("ParseToken(%q) accepts another spelling of %q", s, tok.Text())
		}
	})
}

func TestSecretsDoNotPrint(t *testing.T) {
	tok := mustToken(t, NewTokenStore(), mustCA(t, cluster, start), TokenOptions{})
	ring := NewKeyring()
	secretText := fmt.Sprint(tok.secret[:4])
	keyText := fmt.Sprint(ring.Keys()[0][:4])
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if out := fmt.Sprintf(format, tok); strings.Contains(out, secretText[1:len(secretText)-1]) || strings.Contains(out, tok.Text()[100:]) {
			t.Errorf("%s shows the secret: %s", format, out)
		}
		if out := fmt.Sprintf(format, ring) + fmt.Sprintf(format, ring.Primary()); strings.Contains(out, keyText[1:len(keyText)-1]) {
			t.Errorf("%s shows the key: %s", format, out)
		}
	}
}

// joinWorld is a host that accepts joins.
type joinWorld struct {
	ca     *CA
	host   *Store
	tokens *TokenStore
}

func newJoinWorld(t testing.TB) joinWorld {
	ca := mustCA(t, cluster, start)
	return joinWorld{ca, mustStore(t, ca, Identity{Cluster: cluster, Node: uuid(1), Host: true}, at(start)), NewTokenStore()}
}

// connect dials the host with a token and returns both ends' states.
func (w joinWorld) connect(t testing.TB, tok Token) (client, server tls.ConnectionState) {
	t.Helper()
	m := meet(t, tok.ClientTLS(at(start)), w.host.JoinServerTLS())
	if m.clientErr != nil || m.serverErr != nil {
		t.Fatalf("join handshake: client %v, server %v", m.clientErr, m.serverErr)
	}
	return m.client.ConnectionState(), m.server.ConnectionState()
}

func mustProof(t testing.TB, tok Token, cs tls.ConnectionState) Proof {
	t.Helper()
	p, err := tok.Proof(cs, RoleJoin)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJoinProvesTheSecretOnThisConnectionOnly(t *testing.T) {
	w := newJoinWorld(t)
	tok := mustToken(t, w.tokens, w.ca, TokenOptions{})
	parsed, err := ParseToken(tok.Text())
	if err != nil {
		t.Fatal(err)
	}
	client, server := w.connect(t, parsed)
	proof := mustProof(t, parsed, client)
	if _, err := w.tokens.Redeem(tok.ID, proof, server, start); err != nil {
		t.Fatal(err)
	}

	_, other := w.connect(t, parsed)
	wantError(t, "replayed on another connection", second(w.tokens.Redeem(tok.ID, proof, other, start)), ErrTokenProof)

	guess := tok
	guess.secret[0] ^= 1
	wantError(t, "another secret", second(w.tokens.Redeem(tok.ID, mustProof(t, guess, client), server, start)), ErrTokenProof, tok.ID.String())

	forOther, err := tok.Proof(client, "other")
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "a proof for another role", second(w.tokens.Redeem(tok.ID, forOther, server, start)), ErrTokenProof)

	guess = tok
	guess.ID[0] ^= 1
	wantError(t, "an unknown ID", second(w.tokens.Redeem(guess.ID, proof, server, start)), ErrTokenUnknown)

	w.tokens.Revoke(tok.ID)
	wantError(t, "revoked", second(w.tokens.Redeem(tok.ID, proof, server, start)), ErrTokenUnknown)
}

func TestTokenLimits(t *testing.T) {
	w := newJoinWorld(t)
	tok := mustToken(t, w.tokens, w.ca, TokenOptions{TTL: time.Hour, MaxUses: 2})
	client, server := w.connect(t, tok)
	proof := mustProof(t, tok, client)
	redeem := func(now time.Time) error { return second(w.tokens.Redeem(tok.ID, proof, server, now)) }

	wantError(t, "at its end", redeem(start.Add(time.Hour)), ErrTokenExpired, "2000-01-01T01:00:00Z", "`fabricd token create`")
	for i := range 2 {
		if err := redeem(start.Add(time.Hour - 1)); err != nil {
			t.Fatalf("use %d: %v", i, err)
		}
	}
	wantError(t, "a third use", redeem(start), ErrTokenUsedUp, "2 of 2", "`fabricd token create`")
	w.tokens.Refund(tok.ID)
	if err := redeem(start); err != nil {
		t.Fatalf("after a refund: %v", err)
	}
	again, err := DecodeTokenStore(w.tokens.Encode())
	if err != nil {
		t.Fatal(err)
	}
	again.VoidAll()
	if again, err = DecodeTokenStore(again.Encode()); err != nil {
		t.Fatal(err)
	}
	wantError(t, "void, on disk too", second(again.Redeem(tok.ID, proof, server, start)), ErrTokenVoid, "was rotated")
	// A node without a proof learns nothing of the token's state.
	wantError(t, "no proof", second(w.tokens.Redeem(tok.ID, Proof{}, server, start)), ErrTokenProof)
}

func TestJoinerRefusesAnyOtherHost(t *testing.T) {
	w := newJoinWorld(t)
	tok := mustToken(t, w.tokens, w.ca, TokenOptions{})
	imposter := mustCA(t, cluster, start)
	hostID := Identity{Cluster: cluster, Node: uuid(1), Host: true}
	// A fake that shows the real CA's certificate behind its own.
	showsReal := mustIssue(t, imposter, hostID, start)
	showsReal.Roots = append(showsReal.Roots, w.ca.cert)
	foreign := mustCA(t, uuid(7), start)
	foreignToken := tok
	foreignToken.Pin = foreign.Pin()

	for _, tt := range []struct {
		what  string
		tok   Token
		them  *Store
		cause error
	}{
		{"another CA", tok, mustStore(t, imposter, hostID, at(start)), ErrPin},
		{"another CA that shows the pinned one", tok, forge(t, showsReal, at(start)), ErrWrongCA},
		{"a plain node of the cluster", tok, mustStore(t, w.ca, Identity{Cluster: cluster, Node: uuid(2)}, at(start)), ErrNotHost},
		{"another cluster's host", foreignToken, mustStore(t, foreign, Identity{Cluster: uuid(7), Node: uuid(1), Host: true}, at(start)), ErrWrongCluster},
	} {
		m := meet(t, tt.tok.ClientTLS(at(start)), tt.them.JoinServerTLS())
		wantError(t, tt.what, m.clientErr, tt.cause, "join with token "+tok.ID.String())
		if m.serverErr == nil {
			t.Errorf("%s: the server received nothing", tt.what)
		}
	}
	m := meet(t, tok.ClientTLS(func() time.Time { return start.Add(2 * day) }), w.host.JoinServerTLS())
	wantError(t, "an expired host", m.clientErr, ErrExpired)
	m = meet(t, tok.ClientTLS(at(start)), w.host.ServerTLS(alpn))
	if m.clientErr == nil || m.serverErr == nil {
		t.Error("a link's end accepts a joiner")
	}
	// Without ALPN both ends refuse at once, which a pipe without a buffer
	// cannot carry: ask each on its own.
	var none tls.ConnectionState
	wantError(t, "the joiner without ALPN", tok.ClientTLS(at(start)).VerifyConnection(none), nil, JoinALPN)
	wantError(t, "the host without ALPN", w.host.JoinServerTLS().VerifyConnection(none), nil, JoinALPN)
}

func TestTokenStoreAgainstAModel(t *testing.T) {
	w := newJoinWorld(t)
	probe := mustToken(t, NewTokenStore(), w.ca, TokenOptions{})
	client, server := w.connect(t, probe)
	rapid.Check(t, func(t *rapid.T) {
		type model struct {
			tok     Token
			expires time.Time
			max     uint32
			uses    uint32
			gone    bool
		}
		store, now := NewTokenStore(), start
		var all []*model
		pick := func(t *rapid.T) *model {
			if len(all) == 0 {
				t.Skip("no token yet")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "token")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				opts := TokenOptions{
					TTL:     time.Duration(rapid.IntRange(0, 5).Draw(t, "hours")) * time.Hour,
					MaxUses: rapid.Uint32Range(0, 3).Draw(t, "uses"),
				}
				tok, err := store.Create(cluster, w.ca.Pin(), opts, now)
				if err != nil {
					t.Fatal(err)
				}
				m := &model{tok: tok, max: opts.MaxUses}
				if opts.TTL > 0 {
					m.expires = now.Add(opts.TTL)
				}
				all = append(all, m)
			},
			"redeem": func(t *rapid.T) {
				m := pick(t)
				proof, err := m.tok.Proof(client, RoleJoin)
				if err != nil {
					t.Fatal(err)
				}
				wrong := rapid.Bool().Draw(t, "wrong")
				if wrong {
					proof[3] ^= 1
				}
				var want error
				switch {
				case m.gone:
					want = ErrTokenUnknown
				case wrong:
					want = ErrTokenProof
				case !m.expires.IsZero() && !now.Before(m.expires):
					want = ErrTokenExpired
				case m.max > 0 && m.uses == m.max:
					want = ErrTokenUsedUp
				default:
					m.uses++
				}
				if _, err := store.Redeem(m.tok.ID, proof, server, now); !errors.Is(err, want) || want == nil && err != nil {
					t.Fatalf("redeem: %v, want %v", err, want)
				}
			},
			"revoke": func(t *rapid.T) {
				m := pick(t)
				if got := store.Revoke(m.tok.ID); got == m.gone {
					t.Fatalf("revoke: %v, was gone: %v", got, m.gone)
				}
				m.gone = true
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 120).Draw(t, "minutes")) * time.Minute)
			},
			"restart": func(t *rapid.T) {
				again, err := DecodeTokenStore(store.Encode())
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(again.List(), store.List()) {
					t.Fatalf("after a restart %v, want %v", again.List(), store.List())
				}
				store = again
			},
		})
	})
}

func TestTokenStoreIsBounded(t *testing.T) {
	ca := mustCA(t, cluster, start)
	s := NewTokenStore()
	for range maxTokens {
		mustToken(t, s, ca, TokenOptions{TTL: time.Hour})
	}
	_, err := s.Create(cluster, ca.Pin(), TokenOptions{}, start)
	wantError(t, "one too many", err, ErrTokensFull)
	if len(s.Encode()) > maxTokensBytes {
		t.Errorf("a full store has %d bytes, more than are read back", len(s.Encode()))
	}
	if _, err := s.Create(cluster, ca.Pin(), TokenOptions{}, start.Add(time.Hour)); err != nil {
		t.Errorf("expired tokens are in the way: %v", err)
	}
	if n := len(s.List()); n != 1 {
		t.Errorf("%d tokens, want the new one", n)
	}
	for what, opts := range map[string]TokenOptions{
		"a long label":           {Label: strings.Repeat("x", maxLabelBytes+1)},
		"a negative incarnation": {TTL: -1},
	} {
		if _, err := s.Create(cluster, ca.Pin(), opts, start); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func FuzzDecodeTokenStore(f *testing.F) {
	s := NewTokenStore()
	mustToken(f, s, mustCA(f, cluster, start), TokenOptions{Label: "rack 3", TTL: time.Hour, MaxUses: 1})
	f.Add(s.Encode())
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"id":"00"}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeTokenStore(b)
		if err != nil {
			return
		}
		again, err := DecodeTokenStore(s.Encode())
		if err != nil || !reflect.DeepEqual(again.List(), s.List()) {
			t.Errorf("%v encodes to %v, %v", s.List(), again.List(), err)
		}
	})
}

func TestParseTokenID(t *testing.T) {
	id := TokenID{1, 2, 255}
	if got, err := ParseTokenID(id.String()); err != nil || got != id {
		t.Errorf("%v, %v, want %v", got, err, id)
	}
	for _, bad := range []string{"", "01", "zz02ff0000000000", id.String() + "00"} {
		if _, err := ParseTokenID(bad); err == nil {
			t.Errorf("ParseTokenID(%q) accepted", bad)
		}
	}
}

// second returns the error of a call with a result.
func second(_ TokenRecord, err error) error { return err }
