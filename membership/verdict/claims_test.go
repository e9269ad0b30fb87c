package verdict

import (
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestClaims: no Claims and no Contact have a value that no node can claim.
func TestClaims(t *testing.T) {
	long := strings.Repeat("x", 1000)
	many := slices.Repeat([]string{"a:1"}, MaxAddresses+1)
	for what, bad := range map[string]struct {
		name                 string
		addresses, providers []string
	}{
		"no name":               {"", []string{"a:1"}, nil},
		"a long name":           {strings.Repeat("a", MaxName+1), []string{"a:1"}, nil},
		"a name with a newline": {"a\nb", []string{"a:1"}, nil},
		"a name with an escape": {"\x1b]0;x\a", []string{"a:1"}, nil},
		"not UTF-8":             {"\xff", []string{"a:1"}, nil},
		"no address":            {"n", nil, nil},
		"many addresses":        {"n", many, nil},
		"a long address":        {"n", []string{long + ":1"}, nil},
		"an empty address":      {"n", []string{""}, nil},
		"one good, one not":     {"n", []string{"10.0.0.1:7", ""}, nil},
		"no port":               {"n", []string{"10.0.0.1"}, nil},
		"port 0":                {"n", []string{"10.0.0.1:0"}, nil},
		"port 99999":            {"n", []string{"a:99999"}, nil},
		"everywhere":            {"n", []string{"0.0.0.0:7"}, nil},
		"a group":               {"n", []string{"224.0.0.1:7"}, nil},
		"a zone":                {"n", []string{"[fe80::1%eth0]:7"}, nil},
		"an escape":             {"n", []string{"a\x1b[2J:7"}, nil},
		"many providers":        {"n", []string{"a:1"}, slices.Repeat([]string{"p"}, MaxProviders+1)},
		"a long provider":       {"n", []string{"a:1"}, []string{long}},
		"a strange provider":    {"n", []string{"a:1"}, []string{"q u i c"}},
	} {
		if c, err := NewClaims(bad.name, bad.addresses, bad.providers); err == nil || !c.None() || c.Addresses() != nil {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
	}
	for _, addresses := range [][]string{many, {""}, {"10.0.0.1:0"}} {
		if c, err := NewContact(addr.Incarnation{}, addr.UUID{}, 0, addresses); err == nil || c.Addresses() != nil {
			t.Errorf("a contact at %q: %+v, %v", addresses, c, err)
		}
	}
	c, err := NewClaims("web-1.x_y", []string{"10.0.0.1:7", "[::1]:7", "db:65535"}, []string{"quic"})
	if err != nil || c.None() || c.Name() != "web-1.x_y" || len(c.Addresses()) != 3 || !c.Equal(c) {
		t.Errorf("good claims: %+v, %v", c, err)
	}
	if c.Equal(claims("web-1.x_y", "10.0.0.1:7")) || c.Equal(Claims{}) || !(Claims{}).None() {
		t.Error("different claims are equal")
	}
}
