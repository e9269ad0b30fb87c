package addr_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func TestParseIncarnation(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want addr.Incarnation
		ok   bool
	}{
		{"0.1", addr.Incarnation{Node: 0, Generation: 1}, true},
		{"65535.4294967295", addr.Incarnation{Node: 65535, Generation: 4294967295}, true},
		{"0.0", addr.Incarnation{}, true},
		{"65536.1", addr.Incarnation{}, false},
		{"1.4294967296", addr.Incarnation{}, false},
		{"01.1", addr.Incarnation{}, false},
		{"1.+1", addr.Incarnation{}, false},
		{"1", addr.Incarnation{}, false},
		{"1.", addr.Incarnation{}, false},
		{".1", addr.Incarnation{}, false},
		{"1.2.3", addr.Incarnation{}, false},
		{"", addr.Incarnation{}, false},
	} {
		got, err := addr.ParseIncarnation(tt.in)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("ParseIncarnation(%q) = %v, %v; want %v, ok=%v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := addr.Incarnation{Node: addr.NodeID(rapid.Uint16().Draw(t, "node")), Generation: addr.Generation(rapid.Uint32().Draw(t, "generation"))}
		text, _ := l.MarshalText()
		var back addr.Incarnation
		if err := back.UnmarshalText(text); err != nil || back != l {
			t.Fatalf("%s came back as %v, %v", text, back, err)
		}
		var u, again addr.UUID
		copy(u[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
		text, _ = u.MarshalText()
		if err := again.UnmarshalText(text); err != nil || again != u {
			t.Fatalf("%s came back as %v, %v", text, again, err)
		}
	})
}
