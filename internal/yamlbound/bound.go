// Package yamlbound reports for a YAML file, before it is parsed, whether it nests
// deeper than any that people write: the parser recurses, and its allocations
// grow with the square of the nesting. It knows which key a mistyped one means, too.
package yamlbound

import "strings"

// MaxNesting bounds the nesting of a file.
const MaxNesting = 32

const (
	// inLine is how many signs that can nest a hand-written line may hold without
	// nesting: entries of a mapping in braces, for one.
	inLine = 40
	// indented is how far a line may be indented, in spaces and dashes.
	indented = 60
)

// TooDeep reports whether text may nest deeper than MaxNesting, by brackets, by
// indentation, or by constructs inside a line.
func TooDeep(text []byte) bool {
	for line := range strings.SplitSeq(string(text), "\n") {
		if len(line)-len(strings.TrimLeft(line, " -?")) > indented+MaxNesting || strings.Count(line, "- - ") > MaxNesting {
			return true
		}
		for _, sign := range []string{"[", "{", ": ", "? ", "!"} {
			if strings.Count(line, sign) > inLine+MaxNesting {
				return true
			}
		}
	}
	open := 0
	for _, c := range text {
		switch c {
		case '[', '{':
			if open++; open > MaxNesting {
				return true
			}
		case ']', '}':
			open = max(open-1, 0)
		}
	}
	return false
}
