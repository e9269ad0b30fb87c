// Package printable makes text of other machines safe to print: a name, an
// address or a reason that came from a peer cannot move the cursor, end a line or
// set the title of a terminal.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with everything escaped that a terminal or a line-based reader could interpret:
// control characters, line ends, marks that change the direction of writing, spaces other than the
// plain one, and bytes that are not UTF-8. They become \x1b, \u202e or \U000e0001.
func Text(s string) string {
	if isPlain(s) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1, r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&out, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			out.WriteString(s[i : i+n])
		case r > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		i += n
	}
	return out.String()
}

// isPlain reports whether s is printable ASCII, as nearly all text is.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
