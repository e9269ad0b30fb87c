package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The commands of docs/audit.md are fabricd's, and set the settings that they name. The
// settings and commands that docs/threats.md names exist.
func TestPagesOfSecurityAreTrue(t *testing.T) {
	audit, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(string(audit)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "    fabricd ") {
			continue
		}
		out, stderr, code := run(t, nil, words[1:]...)
		if code != 0 || !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			got := strings.Fields(line)
			return len(got) > 2 && got[0] == "audit-log" && got[1] == words[3] && got[2] == "flag"
		}) {
			t.Errorf("%q: exit code %d\n%s%s", words, code, out, stderr)
		}
		ran++
	}
	if ran != 3 {
		t.Errorf("audit.md has %d commands, want 3", ran)
	}
	threats, err := os.ReadFile("../../docs/threats.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := run(t, nil, "run", "--help")
	for _, name := range []string{"bind", "allowed-networks", "max-nodes", "certificate-validity", "socket-group", "socket-mode",
		"admin", "admin-uids", "admin-gids", "tcp-plaintext", "enable-faults", "audit-log"} {
		if !strings.Contains(help, "--"+name+" ") || !strings.Contains(string(threats), "`"+name+"`") {
			t.Errorf("%s is no setting, or not in threats.md", name)
		}
	}
	for _, m := range regexp.MustCompile("`fabricd ([a-z]+ [a-z]+)").FindAllStringSubmatch(string(threats), -1) {
		if _, stderr, code := run(t, nil, append(strings.Fields(m[1]), "--help")...); code != 0 || stderr != "" {
			t.Errorf("threats.md: fabricd %s: %s", m[1], stderr)
		}
	}
}
