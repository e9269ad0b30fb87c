package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fabricd/fabricd/internal/daemon"
)

// topics are those of the settings, with the beginnings of their names.
var topics = []struct {
	name  string
	begin []string
}{
	{"The node and its cluster", []string{"role", "name", "node-id", "join", "token-file", "state-dir", "max-nodes", "allowed-networks", "certificate-validity", "ca", "cert", "key"}},
	{"Network", []string{"bind", "advertise", "data-port", "gossip-port", "providers", "tcp-plaintext", "paths", "max-paths", "connect-timeout"}},
	{"Failures", []string{"detection", "lost-pair", "enable-faults"}},
	{"Applications", []string{"socket", "admin", "access", "default-access"}},
	{"Gateways", []string{"expose", "forward", "socks", "http-proxy"}},
	{"Page and metrics", []string{"http"}},
	{"Bounds", []string{"app-", "user-", "conn-memory"}},
	{"Rings of one node", []string{"ring-"}},
	{"Logs", []string{"log-", "audit-"}},
}

// topicOf returns the place of a setting's topic; -1: it has none.
func topicOf(key string) int {
	best, length := -1, 0
	for i, t := range topics {
		for _, b := range t.begin {
			if strings.HasPrefix(key, b) && len(b) > length {
				best, length = i, len(b)
			}
		}
	}
	return best
}

// tableCell is text in a Markdown table.
func tableCell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, hostName(), "HOSTNAME"), "|", `\|`)
}

// reference is docs/reference.md: every command and setting, from the code.
func reference(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# Commands and settings\n\nMade by `go test ./cmd/fabricd -update -run Reference`. `fabricd help COMMAND` says more.\n\n## Commands\n\n| command | what it does | its flags |\n|---|---|---|\n")
	commands((&app{}).root(), func(path []string, c *cobra.Command) {
		if !c.Runnable() || len(path) == 1 && path[0] == "run" {
			return
		}
		var flags []string
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && (topicOf(f.Name) < 0 || len(path) > 1 || path[0] != "doctor") {
				flags = append(flags, "`--"+f.Name+"`")
			}
		})
		if path[0] == "doctor" {
			flags = append(flags, "the settings below")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", tableCell(strings.TrimSuffix(c.UseLine(), " [flags]")), tableCell(c.Short), strings.Join(flags, " "))
	})
	b.WriteString("\n## Settings\n\nOf `fabricd run`: each is a flag, a line of the YAML file, and an environment variable: `data-port` is `--data-port`,\n`data-port: 7700` and `FABRIC_DATA_PORT`.\n")
	settings := daemon.Settings()
	for i, topic := range topics {
		fmt.Fprintf(&b, "\n### %s\n\n| setting | what it says | values | default |\n|---|---|---|---|\n", topic.name)
		for _, s := range settings {
			if topicOf(s.Key) == i {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, tableCell(s.Usage), tableCell(s.Allowed), tableCell(s.Value(daemon.Default())))
			}
		}
	}
	if i := slices.IndexFunc(settings, func(s daemon.Setting) bool { return topicOf(s.Key) < 0 }); i >= 0 {
		t.Errorf("setting %s has no topic", settings[i].Key)
	}
	return b.String()
}

func TestReferenceIsMadeFromTheCode(t *testing.T) {
	const file = "../../docs/reference.md"
	got := reference(t)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the code says (go test ./cmd/fabricd -update -run Reference writes it anew)", file)
	}
}

// TestCommandsOnPagesExist checks that every command that a page names in a sentence, a table
// or a line of its own exists in fabricd, with its flags.
func TestCommandsOnPagesExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../../README.md", "../../CHANGELOG.md", "../../SECURITY.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:`fabricd\\s([^`]+)`|^    fabricd (.+)$)").FindAllStringSubmatch(string(text), -1) {
			root := (&app{}).root()
			root.InitDefaultHelpCmd()
			c, rest, err := root.Find(strings.Fields(m[1] + m[2]))
			if err != nil || c.Parent() == nil {
				t.Errorf("%s: `fabricd %s`: %v", filepath.Base(page), m[1]+m[2], err)
				continue
			}
			c.InitDefaultHelpFlag()
			for _, word := range rest {
				if name, ok := strings.CutPrefix(word, "--"); ok && c.Flag(strings.Split(name, "=")[0]) == nil {
					t.Errorf("%s: `fabricd %s`: no flag %s", filepath.Base(page), m[1]+m[2], word)
				}
			}
			found++
		}
	}
	if found < 40 {
		t.Errorf("the pages name %d commands", found)
	}
}
