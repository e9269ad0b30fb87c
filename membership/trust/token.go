package trust

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A TokenID names a join token. It is not secret.
type TokenID [8]byte

// String returns the ID in hexadecimal, the form that [ParseTokenID] accepts.
func (id TokenID) String() string { return hex.EncodeToString(id[:]) }

// ParseTokenID parses the text of [TokenID.String].
func ParseTokenID(s string) (TokenID, error) {
	var id TokenID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return TokenID{}, fmt.Errorf("parse token ID %s: want %d hexadecimal digits", shorten(s), 2*len(id))
	}
	copy(id[:], b)
	return id, nil
}

// secretBytes is the length of a token's secret: 160 bits.
const secretBytes = 20

// A Token lets its holder join a cluster: it authenticates the cluster to the
// node (Cluster and Pin) and the node to the cluster (the secret). Its text is
//
//	fab1-BASE32
//
// with the lower-case, unpadded base32 of
//
//	 0          16     24              56             76           80
//	+----------+------+---------------+--------------+------------+
//	| cluster  | ID   | pin of the CA | secret       | checksum   |
//	+----------+------+---------------+--------------+------------+
//
// where the checksum is the first four bytes of the SHA-256 of the version
// prefix and all that is before it.
type Token struct {
	Cluster addr.UUID
	ID      TokenID
	Pin     Pin
	secret  [secretBytes]byte
}

const (
	tokenName    = "fab"
	tokenPrefix  = "fab1-"
	checksumSize = 4
	tokenBytes   = 16 + 8 + sha256.Size + secretBytes + checksumSize
)

// tokenEncoding maps 80 bytes to 128 characters without padding.
var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Causes of a token that does not parse, for [errors.Is].
var (
	ErrTokenMalformed = errors.New("malformed token")
	ErrTokenVersion   = errors.New("token of an unknown version")
	ErrTokenChecksum  = errors.New("token with a wrong checksum")
)

// newToken makes a token with a random ID and secret.
func newToken(cluster addr.UUID, pin Pin) Token {
	t := Token{Cluster: cluster, Pin: pin}
	rand.Read(t.ID[:]) // never fails
	rand.Read(t.secret[:])
	return t
}

// String names the token without its secret, for logs. See [Token.Text].
func (t Token) String() string { return "token " + t.ID.String() }

// GoString returns the same as [Token.String], so that %#v shows no secret.
func (t Token) GoString() string { return t.String() }

// Text returns the token with its secret, the form that [ParseToken] accepts.
func (t Token) Text() string {
	b := make([]byte, 0, tokenBytes)
	b = append(b, t.Cluster[:]...)
	b = append(b, t.ID[:]...)
	b = append(b, t.Pin[:]...)
	b = append(b, t.secret[:]...)
	b = append(b, tokenChecksum(b)...)
	return tokenPrefix + tokenEncoding.EncodeToString(b)
}

func tokenChecksum(b []byte) []byte {
	h := sha256.New()
	h.Write([]byte(tokenPrefix))
	h.Write(b)
	return h.Sum(nil)[:checksumSize]
}

// ParseToken parses a token's text. White space around it, which files and
// terminals add, is ignored. Errors never contain the text: it is a secret.
func ParseToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	body, err := tokenBody(s)
	if err != nil {
		return Token{}, fmt.Errorf("parse token: %w", err)
	}
	var b [tokenBytes]byte // tokenBody checked that the text decodes to no more
	n, err := tokenEncoding.Decode(b[:], []byte(body))
	if err != nil || n != tokenBytes {
		return Token{}, fmt.Errorf("parse token: %w: it has characters other than a-z and 2-7", ErrTokenMalformed)
	}
	payload, sum := b[:tokenBytes-checksumSize], b[tokenBytes-checksumSize:]
	if !hmac.Equal(sum, tokenChecksum(payload)) {
		return Token{}, fmt.Errorf("parse token: %w: copied incompletely or mistyped", ErrTokenChecksum)
	}
	var t Token
	rest := payload
	for _, field := range [][]byte{t.Cluster[:], t.ID[:], t.Pin[:], t.secret[:]} {
		rest = rest[copy(field, rest):]
	}
	if t.Cluster.IsZero() {
		return Token{}, fmt.Errorf("parse token: %w: it names no cluster", ErrTokenMalformed)
	}
	return t, nil
}

// tokenBody returns the text behind the prefix, of the right length.
func tokenBody(s string) (string, error) {
	version, body, ok := strings.Cut(s, "-")
	number, named := strings.CutPrefix(version, tokenName)
	if !ok || !named {
		return "", fmt.Errorf("%w: want %s followed by %d characters", ErrTokenMalformed, tokenPrefix, tokenEncoding.EncodedLen(tokenBytes))
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != number {
		return "", fmt.Errorf("%w: want %s followed by %d characters", ErrTokenMalformed, tokenPrefix, tokenEncoding.EncodedLen(tokenBytes))
	}
	if version+"-" != tokenPrefix {
		return "", fmt.Errorf("%w: version %d, this fabricd reads version 1", ErrTokenVersion, n)
	}
	if want := tokenEncoding.EncodedLen(tokenBytes); len(body) != want {
		return "", fmt.Errorf("%w: %d characters after %s, want %d", ErrTokenMalformed, len(body), tokenPrefix, want)
	}
	return body, nil
}

// A Proof shows that its sender holds a token's secret, on one connection only.
type Proof [sha256.Size]byte

// A ProofRole is the purpose of a proof, so that a proof for one purpose is none for another.
type ProofRole string

// RoleJoin is the proof of a node that wants to join.
const RoleJoin ProofRole = "join"

// verifier derives from the secret the value that the cluster keeps instead of it.
func (t Token) verifier() (v [sha256.Size]byte) {
	key, err := hkdf.Key(sha256.New, t.secret[:], t.ID[:], "fabricd join token 1", sha256.Size)
	if err != nil {
		panic("BUG: trust: HKDF refuses 32 bytes: " + err.Error())
	}
	copy(v[:], key)
	return v
}

// Proof returns the proof for the connection cs. It is bound to keys of this
// TLS connection that only its two ends know, so its receiver can
// neither use it elsewhere nor learn the secret. The caller must have verified
// the other end with [Token.ClientTLS].
func (t Token) Proof(cs tls.ConnectionState, role ProofRole) (Proof, error) {
	return proofOf(t.verifier(), t.ID, cs, role)
}

func proofOf(verifier [sha256.Size]byte, id TokenID, cs tls.ConnectionState, role ProofRole) (Proof, error) {
	keys, err := cs.ExportKeyingMaterial("EXPORTER-fabricd-join", id[:], sha256.Size)
	if err != nil {
		return Proof{}, fmt.Errorf("prove token %s: %w", id, err)
	}
	mac := hmac.New(sha256.New, verifier[:])
	mac.Write([]byte(role))
	mac.Write([]byte{0}) // ends the role: no role is another's prefix
	mac.Write(keys)
	return Proof(mac.Sum(nil)), nil
}
