package addr

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseLife parses the form that [Life.String] returns, "node.generation", and
// no other: no sign, no leading zero.
func ParseLife(s string) (Life, error) {
	node, generation, _ := strings.Cut(s, ".")
	n, errNode := strconv.ParseUint(node, 10, 16)
	g, errGeneration := strconv.ParseUint(generation, 10, 32)
	l := Life{NodeID(n), Generation(g)}
	if errNode != nil || errGeneration != nil || l.String() != s {
		return Life{}, fmt.Errorf("parse life %q: want node.generation", s)
	}
	return l, nil
}

// MarshalText returns the form of [Life.String].
func (l Life) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is [ParseLife].
func (l *Life) UnmarshalText(text []byte) error {
	parsed, err := ParseLife(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

// MarshalText returns the form of [UUID.String].
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText is [ParseUUID].
func (u *UUID) UnmarshalText(text []byte) error {
	parsed, err := ParseUUID(string(text))
	if err == nil {
		*u = parsed
	}
	return err
}
