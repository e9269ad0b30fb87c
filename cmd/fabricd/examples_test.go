package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// aside matches the text after a command in an example: a pipe, a redirection,
// another command or a remark.
var aside = regexp.MustCompile(`( \||>| < | && |  ).*$`)

// TestExamplesAreCommandLines parses every command line of every example with its
// command: the command exists and takes these flags and arguments. The commands
// are not run.
func TestExamplesAreCommandLines(t *testing.T) {
	var examples []string
	collect := func(_ []string, c *cobra.Command) { examples = append(examples, strings.Split(c.Example, "\n")...) }
	root := (&app{}).root()
	collect(nil, root)
	commands(root, collect)
	for _, example := range examples {
		line := strings.Fields(aside.ReplaceAllString(strings.TrimSpace(example), ""))
		if len(line) == 0 || line[0] != "fabricd" {
			t.Errorf("%q is no command line of fabricd", example)
			continue
		}
		if err := understood(line[1:]); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
	for _, wrong := range []string{"nods", "nodes --jsn", "ping", "init --state-dir", "token create --uses many", "health fine"} {
		if understood(strings.Fields(wrong)) == nil {
			t.Errorf("fabricd %s is understood", wrong)
		}
	}
}

// understood parses a command line up to where its command would begin.
func understood(args []string) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	commands(root, func(_ []string, c *cobra.Command) {
		if c.Runnable() {
			c.Run, c.RunE = nil, func(*cobra.Command, []string) error { return nil }
		}
	})
	root.SetArgs(slices.Clone(args))
	return root.Execute()
}
