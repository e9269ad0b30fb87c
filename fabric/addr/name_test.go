package addr

import (
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "web-1": true, "db.rack_2": true, strings.Repeat("x", MaxName): true,
		"": false, strings.Repeat("x", MaxName+1): false, "a b": false, "a\n": false, "\x1b[2J": false, "käthe": false, "a/b": false,
	} {
		if ValidName(s) != want {
			t.Errorf("%q: %v, want %v", s, !want, want)
		}
	}
}

func TestValidNodeName(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "6a": true, "6.1": true, "-6": true, strings.Repeat("x", MaxNodeName): true,
		"": false, "6": false, "006": false, "70000": false, strings.Repeat("x", MaxNodeName+1): false, "a b": false,
	} {
		if ValidNodeName(s) != want {
			t.Errorf("%q: %v, want %v", s, !want, want)
		}
	}
}
