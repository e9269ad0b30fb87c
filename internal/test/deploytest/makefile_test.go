package deploytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programs returns a directory with shell scripts, as a PATH has it.
func programs(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMakeSaysWhichGoItNeeds in one line, where there is none and where it is too old.
func TestMakeSaysWhichGoItNeeds(t *testing.T) {
	for script, want := range map[string]string{
		"exit 127":                             ": install it from https://go.dev/dl ",
		"echo go version go1.20.3 linux/amd64": " and finds 1.20.3: install it from https://go.dev/dl ",
	} {
		path := programs(t, map[string]string{"go": script}) + ":" + os.Getenv("PATH")
		_, err := output(callLimit, []string{"PATH=" + path, "MAKEFLAGS=", "MAKELEVEL=0"}, "make", "build")
		if err == nil {
			t.Errorf("with a go that does %q make goes on", script)
			continue
		}
		_, text, _ := strings.Cut(err.Error(), "\n")
		if !strings.Contains(text, "fabricd needs Go 1.") || !strings.Contains(text, want) || strings.Contains(text, "\n") {
			t.Errorf("with a go that does %q make prints\n%s\nwant one line with %q", script, text, want)
		}
	}
}

// TestMakeLeavesOutWhatIsMissing: a machine that has Docker alone tests nothing else.
func TestMakeLeavesOutWhatIsMissing(t *testing.T) {
	_, script, _ := strings.Cut(readFile(t, "Makefile"), "define WITHOUT\n")
	script, _, found := strings.Cut(script, "\nendef")
	bash, err := exec.LookPath("bash")
	if err != nil || !found {
		t.Fatalf("the Makefile has no script WITHOUT, or there is no bash: %v", err)
	}
	script = "set -euo pipefail\n" + strings.ReplaceAll(script, "$$", "$") + "\necho $FABRICD_TEST_WITHOUT"
	path := programs(t, map[string]string{"docker": "exit 0"})
	out, err := output(callLimit, []string{"PATH=" + path, "FABRICD_TEST_ALL=", "FABRICD_TEST_WITHOUT=prometheus"}, bash, "-c", script)
	if want := "prometheus,debian,systemd,chromium,postgresql\n"; err != nil || out != want {
		t.Errorf("it leaves out %q, %v; want %q", out, err, want)
	}
}
