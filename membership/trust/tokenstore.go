package trust

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// maxTokens bounds the tokens of a cluster. At the bound Create removes tokens
// that can no longer be used, and fails if there is none.
const maxTokens = 1024

// maxLabelBytes bounds a token's label.
const maxLabelBytes = 128

// Causes of a refused token, for [errors.Is].
var (
	ErrTokenUnknown = errors.New("unknown token")
	ErrTokenProof   = errors.New("wrong proof of the token's secret")
	ErrTokenExpired = errors.New("token expired")
	ErrTokenVoid    = errors.New("token void")
	ErrTokenUsedUp  = errors.New("token used up")
	ErrTokensFull   = errors.New("too many join tokens: revoke some")
)

// A TokenRecord is the cluster's record of a token. It has no secret.
type TokenRecord struct {
	ID      TokenID
	Label   string
	Created time.Time
	Expires time.Time // zero: never
	MaxUses uint32    // 0: any number
	Uses    uint32    // how often it was redeemed
	Labels  []string  // that nodes get which join with it
	Void    bool      // it names an authority that another one has followed
}

// Unlimited reports whether the token may be used any number of times.
func (r TokenRecord) Unlimited() bool { return r.MaxUses == 0 }

// usable returns why the token cannot be used at now, or nil.
func (r TokenRecord) usable(now time.Time) error {
	if r.Void {
		return fmt.Errorf("%w: the authority was rotated: make a new one with `fabricd token create`", ErrTokenVoid)
	}
	if !r.Expires.IsZero() && !now.Before(r.Expires) {
		return fmt.Errorf("%w at %s: make a new one with `fabricd token create`", ErrTokenExpired, stamp(r.Expires))
	}
	if !r.Unlimited() && r.Uses >= r.MaxUses {
		return fmt.Errorf("%w: %d of %d uses: make a new one with `fabricd token create`", ErrTokenUsedUp, r.Uses, r.MaxUses)
	}
	return nil
}

// TokenOptions are the limits of a new token. The zero value makes a token that any number of nodes
// may use at any time.
type TokenOptions struct {
	Label   string        // for people, at most 128 bytes
	TTL     time.Duration // 0: never expires
	MaxUses uint32        // 0: any number
	Labels  []string      // that nodes get which join with it, at most [MaxLabels] words
}

// MaxLabels bounds the labels of a token.
const MaxLabels = 8

// CheckLabels refuses labels that rules could not name.
func CheckLabels(labels []string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("%d labels, want at most %d", len(labels), MaxLabels)
	}
	for _, l := range labels {
		if !addr.ValidName(l) {
			return fmt.Errorf("label %s: want 1 to %d letters, digits, '.', '-' or '_'", shorten(l), addr.MaxName)
		}
	}
	return nil
}

// A TokenStore is the host's side of join tokens. It keeps no secrets, only
// keys derived from them. It writes nothing: after a call that changed it, the
// owner persists [TokenStore.Encode] before acting on the result. Its methods
// may be called by several goroutines.
type TokenStore struct {
	mu     sync.Mutex // guards tokens
	tokens map[TokenID]*tokenEntry
}

type tokenEntry struct {
	TokenRecord
	verifier [sha256.Size]byte
}

// NewTokenStore returns a store without tokens.
func NewTokenStore() *TokenStore {
	return &TokenStore{tokens: map[TokenID]*tokenEntry{}}
}

// Create makes a token for a cluster whose CA has this pin.
func (s *TokenStore) Create(cluster addr.UUID, pin Pin, opts TokenOptions, now time.Time) (Token, error) {
	if len(opts.Label) > maxLabelBytes {
		return Token{}, fmt.Errorf("create token: label of %d bytes, want at most %d", len(opts.Label), maxLabelBytes)
	}
	if opts.TTL < 0 {
		return Token{}, fmt.Errorf("create token: lifetime of %s, want 0 (for ever) or more", opts.TTL)
	}
	if err := CheckLabels(opts.Labels); err != nil {
		return Token{}, fmt.Errorf("create token: %w", err)
	}
	t := newToken(cluster, pin)
	e := &tokenEntry{verifier: t.verifier()}
	// Encode keeps whole seconds in UTC.
	e.TokenRecord = TokenRecord{ID: t.ID, Label: strings.ToValidUTF8(opts.Label, "\uFFFD"), Created: now.UTC().Truncate(time.Second), MaxUses: opts.MaxUses, Labels: slices.Clone(opts.Labels)}
	if opts.TTL > 0 {
		e.Expires = now.Add(opts.TTL).UTC().Truncate(time.Second)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruneLocked(now)
	if len(s.tokens) >= maxTokens {
		return Token{}, fmt.Errorf("create token: %w", ErrTokensFull)
	}
	s.tokens[t.ID] = e
	return t, nil
}

// pruneLocked makes room at the bound. Below it, dead tokens stay, so that
// their users receive the reason of the refusal.
func (s *TokenStore) pruneLocked(now time.Time) {
	if len(s.tokens) < maxTokens {
		return
	}
	for id, e := range s.tokens {
		if e.usable(now) != nil {
			delete(s.tokens, id)
		}
	}
}

// Redeem checks a proof that arrived on the connection cs and takes one use of the token, whose
// record it returns. A peer that has not proved the secret does not learn whether the token has
// expired or is used up. A failed Redeem changes nothing.
func (s *TokenStore) Redeem(id TokenID, proof Proof, cs tls.ConnectionState, now time.Time) (TokenRecord, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.tokens[id]
	if e == nil {
		return TokenRecord{}, fmt.Errorf("redeem token %s: %w: revoked, or of another host", id, ErrTokenUnknown)
	}
	want, err := proofOf(e.verifier, id, cs, RoleJoin)
	if err != nil {
		return TokenRecord{}, err
	}
	if !hmac.Equal(want[:], proof[:]) {
		return TokenRecord{}, fmt.Errorf("redeem token %s: %w", id, ErrTokenProof)
	}
	if err := e.usable(now); err != nil {
		return TokenRecord{}, fmt.Errorf("redeem token %s: %w", id, err)
	}
	if e.Uses < ^uint32(0) { // an unlimited token's count stops at its end
		e.Uses++
	}
	return e.TokenRecord, nil
}

// Refund gives back one use, for a join that failed after Redeem.
func (s *TokenStore) Refund(id TokenID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.tokens[id]; e != nil && e.Uses > 0 {
		e.Uses--
	}
}

// VoidAll makes all tokens unusable, as those are that name an authority which another one
// follows. They stay, so that their users and operators see why.
func (s *TokenStore) VoidAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.tokens {
		e.Void = true
	}
}

// Revoke removes a token. It reports whether there was one.
func (s *TokenStore) Revoke(id TokenID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.tokens[id]
	delete(s.tokens, id)
	return ok
}

// List returns all tokens, oldest first.
func (s *TokenStore) List() []TokenRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]TokenRecord, 0, len(s.tokens))
	for _, e := range s.tokens {
		list = append(list, e.TokenRecord)
	}
	slices.SortFunc(list, func(a, b TokenRecord) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID[:]), string(b.ID[:]))
	})
	return list
}

// tokenJSON is a token in the state directory.
type tokenJSON struct {
	ID       string   `json:"id"`
	Label    string   `json:"label,omitempty"`
	Created  int64    `json:"created"`           // seconds since 1970
	Expires  *int64   `json:"expires,omitempty"` // seconds since 1970
	MaxUses  uint32   `json:"max_uses"`
	Uses     uint32   `json:"uses"`
	Labels   []string `json:"labels,omitempty"`
	Void     bool     `json:"void,omitempty"`
	Verifier []byte   `json:"verifier"`
}

// Encode returns the store for its file. It is a secret: its reader can
// redeem the tokens.
func (s *TokenStore) Encode() []byte {
	records := s.List()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]tokenJSON, 0, len(records))
	for _, r := range records {
		e := s.tokens[r.ID]
		if e == nil {
			continue // revoked between the two locks
		}
		j := tokenJSON{ID: e.ID.String(), Label: e.Label, Created: e.Created.Unix(), MaxUses: e.MaxUses, Uses: e.Uses, Labels: e.Labels, Void: e.Void, Verifier: e.verifier[:]}
		if !e.Expires.IsZero() {
			j.Expires = new(e.Expires.Unix())
		}
		list = append(list, j)
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic("BUG: trust: encode tokens: " + err.Error())
	}
	return b
}

// maxTokensBytes bounds an encoded store before it is parsed.
const maxTokensBytes = 1 << 20

// DecodeTokenStore parses the bytes of [TokenStore.Encode]. No bytes are an empty store.
func DecodeTokenStore(b []byte) (*TokenStore, error) {
	s := NewTokenStore()
	if len(b) == 0 {
		return s, nil
	}
	if len(b) > maxTokensBytes {
		return nil, fmt.Errorf("decode tokens: %d bytes, want at most %d: %w", len(b), maxTokensBytes, ErrTooBig)
	}
	var list []tokenJSON
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("decode tokens: %w", err)
	}
	if len(list) > maxTokens {
		return nil, fmt.Errorf("decode tokens: %d of them, want at most %d: %w", len(list), maxTokens, ErrTooBig)
	}
	for i, j := range list {
		e, err := j.entry()
		if err != nil {
			return nil, fmt.Errorf("decode tokens: number %d: %w", i, err)
		}
		if s.tokens[e.ID] != nil {
			return nil, fmt.Errorf("decode tokens: number %d: token %s is there twice", i, e.ID)
		}
		s.tokens[e.ID] = e
	}
	return s, nil
}

func (j tokenJSON) entry() (*tokenEntry, error) {
	id, err := ParseTokenID(j.ID)
	if err != nil {
		return nil, err
	}
	if len(j.Verifier) != sha256.Size || len(j.Label) > maxLabelBytes {
		return nil, fmt.Errorf("token %s: verifier of %d bytes, label of %d", id, len(j.Verifier), len(j.Label))
	}
	if err := CheckLabels(j.Labels); err != nil {
		return nil, fmt.Errorf("token %s: %w", id, err)
	}
	e := &tokenEntry{verifier: [sha256.Size]byte(j.Verifier)}
	e.TokenRecord = TokenRecord{ID: id, Label: j.Label, Created: time.Unix(j.Created, 0).UTC(), MaxUses: j.MaxUses, Uses: j.Uses, Labels: j.Labels, Void: j.Void}
	if j.Expires != nil {
		e.Expires = time.Unix(*j.Expires, 0).UTC()
	}
	return e, nil
}
