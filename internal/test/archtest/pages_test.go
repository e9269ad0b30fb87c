package archtest

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

// mostOfArchitecture bounds the lines of ARCHITECTURE.md: it is read in an hour.
const mostOfArchitecture = 250

// TestArchitectureIsShortAndTrue: what its last table names as a place of a change exists.
func TestArchitectureIsShortAndTrue(t *testing.T) {
	text, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n > mostOfArchitecture {
		t.Errorf("ARCHITECTURE.md has %d lines, want %d at most", n, mostOfArchitecture)
	}
	_, table, _ := strings.Cut(string(text), "| to add | where |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	named := regexp.MustCompile("`([a-z][a-z/_]*(?:\\.go)?)`").FindAllStringSubmatch(table, -1)
	for _, m := range named {
		exists := false
		for _, in := range []string{"", "internal/", "membership/"} {
			_, err := os.Stat("../../../" + in + m[1])
			exists = exists || err == nil
		}
		if !exists && strings.Contains(m[1], "/") { // others are names within a package
			t.Errorf("ARCHITECTURE.md sends a change to %s, which is not there", m[1])
		}
	}
	if len(named) < 30 {
		t.Errorf("the table names %d places", len(named))
	}
}
