package addr_test

import (
	"net"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want addr.Addr
		ok   bool
	}{
		{"0:1", addr.Addr{Node: addr.Host, Port: 1}, true},
		{"3:2048", addr.Addr{Node: 3, Port: 2048}, true},
		{"65535:65535", addr.Addr{Node: addr.NoNode, Port: 65535}, true},
		{"0:0", addr.Addr{}, true},
		{"65536:1", addr.Addr{}, false},
		{"1:65536", addr.Addr{}, false},
		{"3", addr.Addr{}, false},
		{"", addr.Addr{}, false},
		{":", addr.Addr{}, false},
		{"3:", addr.Addr{}, false},
		{":5", addr.Addr{}, false},
		{"3:5:7", addr.Addr{}, false},
		{"-1:5", addr.Addr{}, false},
		{"+1:5", addr.Addr{}, false},
		{" 1:5", addr.Addr{}, false},
		{"0x1:5", addr.Addr{}, false},
		{"1:5\n", addr.Addr{}, false},
		{"host:5", addr.Addr{}, false},
	} {
		got, err := addr.Parse(tt.in)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("Parse(%q) = %v, %v; want %v, ok=%v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestParseErrorsSayWhatIsWrong(t *testing.T) {
	for in, want := range map[string]string{
		"3":       `parse address "3": want node:port`,
		"70000:1": `parse address "70000:1": node: want a number from 0 to 65535`,
		"1:70000": `parse address "1:70000": port: want a number from 0 to 65535`,
		"1:x":     `parse address "1:x": port: want a number from 0 to 65535`,
	} {
		if _, err := addr.Parse(in); err == nil || err.Error() != want {
			t.Errorf("Parse(%q): %v, want %q", in, err, want)
		}
	}
	want := `parse address "web-1:99999": port: want a number from 0 to 65535`
	if _, err := addr.ParseTarget("web-1:99999"); err == nil || err.Error() != want {
		t.Errorf("ParseTarget: %v, want %q", err, want)
	}
}

func TestAddrParsesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := addr.Addr{
			Node: addr.NodeID(rapid.Uint16().Draw(t, "node")),
			Port: addr.Port(rapid.Uint16().Draw(t, "port")),
		}
		if got, err := addr.Parse(want.String()); got != want || err != nil {
			t.Fatalf("Parse(%q) = %v, %v", want.String(), got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"3:2048", "0:0", "65536:1", "3", "1:2:3", "01:1", "+1:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := addr.Parse(s)
		if err != nil {
			if a != (addr.Addr{}) {
				t.Errorf("Parse(%q) = %v beside an error", s, a)
			}
			return
		}
		if b, err := addr.Parse(a.String()); b != a || err != nil {
			t.Errorf("Parse(%q) = %v, %v; want %v back", a.String(), b, err, a)
		}
	})
}

func TestParseUUID(t *testing.T) {
	const text = "00112233-4455-6677-8899-aabbccddeeff"
	want := addr.UUID{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF}
	for _, s := range []string{text, strings.ToUpper(text)} {
		if got, err := addr.ParseUUID(s); got != want || err != nil {
			t.Errorf("ParseUUID(%q) = %v, %v", s, got, err)
		}
	}
	if want.String() != text {
		t.Errorf("String = %q, want %q", want.String(), text)
	}
	for _, s := range []string{
		"",
		"00112233445566778899aabbccddeeff",
		"{" + text[1:35] + "}",
		text + "0",
		text[:35],
		"00112233-4455-6677-8899-aabbccddeefg",
		"0011223-34455-6677-8899-aabbccddeeff",
		"00112233-4455-6677-8899_aabbccddeeff",
		"00112233-4455-6677-8899-aabbccdd-eef",
		"urn:uuid:" + text,
	} {
		if got, err := addr.ParseUUID(s); err == nil || got != (addr.UUID{}) {
			t.Errorf("ParseUUID(%q) = %v, %v; want an error and the zero UUID", s, got, err)
		}
	}
}

func FuzzParseIncarnation(f *testing.F) {
	for _, s := range []string{"3.1", "0.4294967295", "65536.1", "3", "3.", "03.1", "3.1.1", "-1.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := addr.ParseIncarnation(s)
		if err != nil && l != (addr.Incarnation{}) || err == nil && l.String() != s {
			t.Errorf("ParseIncarnation(%q) = %v, %v", s, l, err)
		}
	})
}

func FuzzParseUUID(f *testing.F) {
	f.Add("00112233-4455-6677-8899-aabbccddeeff")
	f.Add("00000000-0000-0000-0000-000000000000")
	f.Add("00112233-4455-6677-8899-aabbccddeef")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := addr.ParseUUID(s)
		if err == nil && u.String() != strings.ToLower(s) {
			t.Errorf("ParseUUID(%q) = %v", s, u)
		}
	})
}

func TestUUIDIsZero(t *testing.T) {
	var u addr.UUID
	if !u.IsZero() {
		t.Error("the zero UUID is not zero")
	}
	for i := range u {
		u := addr.UUID{}
		u[i] = 1
		if u.IsZero() {
			t.Errorf("a UUID with byte %d set is zero", i)
		}
	}
}

func TestIncarnationNamesNodeAndGeneration(t *testing.T) {
	if got := (addr.Incarnation{Node: 3, Generation: 17}).String(); got != "3.17" {
		t.Errorf("String = %q, want 3.17", got)
	}
}

func TestAddrIsANetAddr(t *testing.T) {
	var a net.Addr = addr.Addr{Node: 2, Port: 2050}
	if a.Network() != "scif" || a.String() != "2:2050" {
		t.Errorf("%s address %s, want scif address 2:2050", a.Network(), a)
	}
}

func TestConstantsAreSCIFs(t *testing.T) {
	if addr.Host != 0 || addr.NoNode != 0xFFFF || addr.FirstReserved != 0xFFF0 {
		t.Error("node IDs changed")
	}
	if addr.AdminEnd != 1024 || addr.ReservedEnd != 1088 || addr.FirstEphemeral != 32768 {
		t.Error("port ranges changed")
	}
}
