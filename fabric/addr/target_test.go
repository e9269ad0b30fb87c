package addr

import (
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for s, want := range map[string]Target{
		"db":          {Service: "db"},
		"db.main_2-x": {Service: "db.main_2-x"},
		"9lives":      {Service: "9lives"},
		"db@web-1":    {Service: "db", Node: "web-1"},
		"db@3":        {Service: "db", Node: "3"},
		"web-1:2050":  {Node: "web-1", Port: 2050},
		"3:2050":      {Node: "3", Port: 2050},
		"65535:65535": {Node: "65535", Port: 65535},
		"_x:1":        {Node: "_x", Port: 1},
		"0:0":         {Node: "0"},
	} {
		got, err := ParseTarget(s)
		if err != nil || got != want {
			t.Errorf("ParseTarget(%q) = %+v, %v; want %+v", s, got, err, want)
		}
		if got.String() != s {
			t.Errorf("%+v is written %q, want %q", got, got.String(), s)
		}
	}
	for _, s := range []string{"", "3", "65536", "db@", "@3", "@", ":", ":5", "3:", "3:x", "3:65536", "3:-1", "3:+1", "65536:1", "a b", "a b:1", "db@a b",
		"db@65536", "-x", ".x", "_x", "db@3:5", "3:5@db", "käthe", "db\n", strings.Repeat("x", MaxService+1), "1:2:3"} {
		if got, err := ParseTarget(s); err == nil || got != (Target{}) {
			t.Errorf("ParseTarget(%q) = %+v, %v; want an error", s, got, err)
		}
	}
}

func TestTargetAddr(t *testing.T) {
	for s, want := range map[string]bool{"3:2050": true, "web-1:2050": false, "db": false, "db@3": false} {
		target, err := ParseTarget(s)
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := target.Addr(); ok != want || ok && a != (Addr{3, 2050}) {
			t.Errorf("%s: address %v, %v", s, a, ok)
		}
	}
}

func TestValidService(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "db": true, "9p": true, strings.Repeat("x", MaxService): true,
		"": false, "3": false, "007": false, strings.Repeat("x", MaxService+1): false, "-a": false, ".a": false, "_a": false, "3:2050": false, "a@b": false, "ä": false,
	} {
		if ValidService(s) != want {
			t.Errorf("%q: %v, want %v", s, !want, want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"db", "db@web-1", "db@3", "web-1:2050", "3:2050", "03:1", "3", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x, err := ParseTarget(s)
		if err != nil {
			return
		}
		if again, err := ParseTarget(x.String()); err != nil || again != x {
			t.Errorf("%q is %+v, which is written %q and that %+v, %v", s, x, x.String(), again, err)
		}
		if x.Service != "" && !ValidService(x.Service) {
			t.Errorf("%q has the service %q", s, x.Service)
		}
	})
}
