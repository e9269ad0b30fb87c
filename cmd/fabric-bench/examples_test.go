package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// aside matches what follows a command in an example: a redirection or a remark.
var aside = regexp.MustCompile(`(>|  ).*$`)

// TestExamplesAreCommandLines gives every command line of every example to the
// command that it is for: it exists and takes these flags and arguments. What
// the commands then do is not done here.
func TestExamplesAreCommandLines(t *testing.T) {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	var examples []string
	each(root, func(c *cobra.Command) {
		if c.Example != "" {
			examples = append(examples, strings.Split(c.Example, "\n")...)
		}
	})
	if len(examples) < 10 {
		t.Errorf("only %d examples are found", len(examples))
	}
	for _, example := range examples {
		line := strings.Fields(aside.ReplaceAllString(strings.TrimSpace(example), ""))
		if len(line) == 0 || line[0] != "fabric-bench" {
			t.Errorf("%q is no command line of fabric-bench", example)
			continue
		}
		if err := understood(line[1:]); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
	for _, wrong := range []string{"sweep", "local --size", "run msg_lat --formt csv", "serve --port 70000", "run fail_detect --kills few"} {
		if understood(strings.Fields(wrong)) == nil {
			t.Errorf("fabric-bench %s is understood", wrong)
		}
	}
}

// each calls fn for c and every command below it.
func each(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		each(sub, fn)
	}
}

// understood parses a command line up to where its command would begin.
func understood(args []string) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	each(root, func(c *cobra.Command) {
		if c.Runnable() {
			c.Run, c.RunE = nil, func(*cobra.Command, []string) error { return nil }
		}
	})
	root.SetArgs(args)
	return root.Execute()
}
