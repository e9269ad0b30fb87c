package client

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// overlaid builds this test's program with some files replaced or added: texts by name, from this
// directory.
func overlaid(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	overlay := map[string]string{}
	for name, text := range files {
		place, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, fmt.Sprintf("%d-%s", len(overlay), filepath.Base(name)))
		overlay[place] = file
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": overlay})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// contents returns a file of the tree.
func contents(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// replaced returns text with old replaced by with; old occurs once. The parameter what names the
// text in failures.
func replaced(t *testing.T, what, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("%s: there is %d times %q, want once", what, n, old)
	}
	return strings.Replace(text, old, with, 1)
}
