package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// What deploy/latency.md runs is what fabricd takes, and the variable and the setting that
// it names are one.
func TestPageOfLatencyIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../deploy/latency.md")
	if err != nil {
		t.Fatal(err)
	}
	low := func(environ []string, args ...string) {
		t.Helper()
		out, stderr, code := run(t, environ, append(args, "--explain")...)
		if code != 0 || !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			words := strings.Fields(line)
			return len(words) > 1 && words[0] == "link-latency" && words[1] == "low"
		}) {
			t.Errorf("%q %q: exit code %d, want link-latency low in\n%s%s", environ, args, code, out, stderr)
		}
	}
	ran := 0
	for line := range strings.Lines(string(page)) {
		if words := strings.Fields(line); strings.HasPrefix(line, "    fabricd run ") {
			low(nil, words[1:]...)
			ran++
		}
	}
	for _, named := range []string{"`fabricd run --link-latency low`", "`FABRIC_LINK_LATENCY`"} {
		if !strings.Contains(string(page), named) {
			t.Errorf("the page does not name %s", named)
		}
	}
	low([]string{"FABRIC_LINK_LATENCY=low"}, "run")
	if ran == 0 {
		t.Error("the page has no command")
	}
}
