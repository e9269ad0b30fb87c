package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandHasAManualPage with its flags, and none that users do not see.
func TestEveryCommandHasAManualPage(t *testing.T) {
	dir := t.TempDir()
	if _, stderr, code := run(t, nil, "man", dir); code != exitOK {
		t.Fatal(stderr)
	}
	pages := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		pages[strings.TrimSuffix(e.Name(), ".1")] = string(text)
	}
	want := 1
	commands((&app{}).root(), func(path []string, c *cobra.Command) {
		want++
		page := pages["fabricd-"+strings.Join(path, "-")]
		if !strings.HasPrefix(page, ".TH ") || !strings.Contains(page, ".SH EXAMPLES\n") {
			t.Errorf("%s: %.100q", path, page)
		}
	})
	if len(pages) != want {
		t.Errorf("%d pages, want %d", len(pages), want)
	}
	if page := pages["fabricd-backup"]; !strings.Contains(page, ".TP\n.B \\-\\-out string\nnew file to write\n") || !strings.Contains(page, "cluster\\(aqs") {
		t.Errorf("backup: %s", page)
	}
	if got := roff(".a\n-b\\c"); got != "\\&.a\n\\-b\\ec" {
		t.Errorf("%q", got)
	}
}
