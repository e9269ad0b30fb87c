package addr

import "strings"

// MaxName bounds a name of a node and a label, in bytes.
const MaxName = 64

// ValidName reports whether s can be a node's name or a label: 1 to [MaxName]
// letters and digits of ASCII, '.', '-' and '_'. It prints everywhere as it is, and
// is no more than one word.
func ValidName(s string) bool { return len(s) <= MaxName && word(s) }

// ValidHost reports whether s can be the name of a machine: as [ValidName], up to
// 253 bytes.
func ValidHost(s string) bool { return len(s) <= 253 && word(s) }

func word(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	}) < 0
}
