package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestEveryWrongArgumentSaysWhatIsWanted: neither cobra's errors nor those of strconv get to users.
func TestEveryWrongArgumentSaysWhatIsWanted(t *testing.T) {
	free := []string{"string", "stringSlice", "stringArray"} // every text is a value
	a := &app{stdout: io.Discard, stderr: io.Discard}
	commands(a.root(), func(path []string, c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if kind := f.Value.Type(); wantedValues[kind] == "" && !slices.Contains(free, kind) {
				t.Errorf("%v --%s: nothing describes the values of a %s", path, f.Name, kind)
			}
		})
		for n := range 4 {
			if c.Args == nil {
				continue
			}
			if err := c.Args(c, make([]string, n)); err != nil && strings.Contains(err.Error(), "arg(s)") {
				t.Errorf("%v with %d arguments: %v", path, n, err)
			}
		}
	})
}

func TestVersionIsAFlagToo(t *testing.T) {
	want, _, _ := run(t, nil, "version")
	if out, stderr, code := run(t, nil, "--version"); out != want || code != exitOK || stderr != "" {
		t.Errorf("exit code %d, %q, %q; want %q", code, out, stderr, want)
	}
}

// TestCopyLooksAtTheFileFirst: before it asks for a fabricd, which is not there.
func TestCopyLooksAtTheFileFirst(t *testing.T) {
	_, stderr, code := run(t, nil, "cp", "/dev/zero", "inbox:", "--socket", "/nonexistent")
	if code != exitFail || !strings.Contains(stderr, "/dev/zero: not a regular file") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
