package addr

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseIncarnation parses the form that [Incarnation.String] returns, "node.generation", and
// no other: no sign, no leading zero.
func ParseIncarnation(s string) (Incarnation, error) {
	node, generation, _ := strings.Cut(s, ".")
	n, errNode := strconv.ParseUint(node, 10, 16)
	g, errGeneration := strconv.ParseUint(generation, 10, 32)
	l := Incarnation{NodeID(n), Generation(g)}
	if errNode != nil || errGeneration != nil || l.String() != s {
		return Incarnation{}, fmt.Errorf("parse incarnation %q: want node.generation", s)
	}
	return l, nil
}

// MarshalText returns the form of [Incarnation.String].
func (l Incarnation) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is [ParseIncarnation].
func (l *Incarnation) UnmarshalText(text []byte) error {
	parsed, err := ParseIncarnation(string(text))
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
