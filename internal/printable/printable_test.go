package printable

import (
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"web-1 at 10.0.0.1:7700":       "web-1 at 10.0.0.1:7700",
		"\x1b]0;owned\a":               `\x1b]0;owned\x07`,
		"a\r\nfabricd: all is well":    `a\x0d\x0afabricd: all is well`,
		"tab\tand\x7f":                 `tab\x09and\x7f`,
		"\xff\xfebytes":                `\xff\xfebytes`,
		"C1 \u009b31m":                 `C1 \u009b31m`,
		"right \u202e to left\u2066":   `right \u202e to left\u2066`,
		"line\u2028end\u00a0no\u200bw": `line\u2028end\u00a0no\u200bw`,
		"tag \U000e0041":               `tag \U000e0041`,
		"größer, 1,4 µs, 名前":           "größer, 1,4 µs, 名前",
		"the mark \ufffd itself":       "the mark \ufffd itself",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzText: for any input, the output is printable, and Text does not change it again.
func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\u009b\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Fatalf("Text(%q) has %q", s, r)
			}
		}
		if again := Text(got); again != got {
			t.Fatalf("Text(%q) = %q, twice %q", s, got, again)
		}
	})
}
