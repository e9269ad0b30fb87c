package path

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// A Token opens one path, once. The node that accepts the socket has made it and
// sent it over the link, bound to one connection.
type Token [16]byte

// NewToken returns a random token, which cannot be guessed.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // it never fails
	return t
}

// A Binding ties the bytes of a path to one connection: both ends send it first, so
// that the paths of two connections of the same processes cannot be exchanged.
type Binding [sha256.Size]byte

// Bind returns the binding of a path of which the dialing node has made one token and the
// accepting node the other.
func Bind(dialer, acceptor Token) Binding {
	return sha256.Sum256(append(dialer[:], acceptor[:]...))
}

// First is the first byte of a path's socket, which neither a TLS record nor
// anything else at the data port begins with.
const First = 'P'

// version follows First: the version of the path's protocol.
const version = 1

// GreetingLen is the length of the dialer's first bytes: First, the version and
// the token.
const GreetingLen = 2 + len(Token{})

// accepted is the acceptor's answer to a token that it knows.
const accepted = 1

// ErrRefused means that the other node does not know the token, or not any more.
var ErrRefused = errors.New("the other node refuses the path")

// Greet opens a path on a socket that was dialed, and waits for the answer.
func Greet(c io.ReadWriter, t Token) error {
	if _, err := c.Write(append([]byte{First, version}, t[:]...)); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if answer[0] != accepted {
		return ErrRefused
	}
	return nil
}

// ReadGreeting reads the token of a socket that was accepted.
func ReadGreeting(r io.Reader) (t Token, err error) {
	var b [GreetingLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return t, err
	}
	if b[0] != First || b[1] != version {
		return t, fmt.Errorf("a path begins with % x, want % x", b[:2], []byte{First, version})
	}
	return Token(b[2:]), nil
}

// Accept answers a token that is known.
func Accept(w io.Writer) error {
	_, err := w.Write([]byte{accepted})
	return err
}
