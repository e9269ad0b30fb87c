package addr

import "strings"

// MaxName bounds a label, and a name of a node in a message, in bytes.
const MaxName = 64

// MaxNodeName bounds the name that a node may take, in bytes: that of a label of DNS.
const MaxNodeName = 63

// ValidNodeName reports whether a node may take the name s: as [ValidName], up to
// [MaxNodeName] bytes, and not digits alone: those are always an ID.
func ValidNodeName(s string) bool { return len(s) <= MaxNodeName && word(s) && !digits(s) }

// ValidName reports whether s can be a label, or in a message a node's name: 1 to [MaxName]
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
