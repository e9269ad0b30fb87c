package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/daemon"
)

// TestBackupAndRestoreOfAStoppedHost: by the commands, with the cases that they refuse.
func TestBackupAndRestoreOfAStoppedHost(t *testing.T) {
	tmp := t.TempDir()
	dir, file := filepath.Join(tmp, "host"), filepath.Join(tmp, "backup")
	want := func(code int, text string, args ...string) string {
		t.Helper()
		out, stderr, got := run(t, []string{"FABRIC_ADMIN=" + filepath.Join(tmp, "nobody")}, args...)
		if got != code || !strings.Contains(out+stderr, text) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("fabricd %s: exit code %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, code, text, out, stderr)
		}
		return out
	}
	want(exitUsage, "holds no cluster", "backup", "--state-dir", dir, "--out", file)
	want(exitOK, "", "init", "--state-dir", dir, "--name", "one", "--token-file", filepath.Join(tmp, "token"))
	want(exitUsage, "want --out FILE", "backup", "--state-dir", dir)
	want(exitOK, `host "one"`, "backup", "--state-dir", dir, "--out", file)
	want(exitUsage, "exists already", "backup", "--state-dir", dir, "--out", file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v: %v", info.Mode(), err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	want(exitUsage, "other users may read it (mode 0644)", "restore", file, "--state-dir", filepath.Join(tmp, "open"))
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	want(exitUsage, "--force keeps it aside", "restore", file, "--state-dir", dir)
	var b daemon.Backup
	if err := json.Unmarshal([]byte(want(exitOK, "", "restore", file, "--state-dir", dir, "--force", "--json")), &b); err != nil || b.Kept == "" || len(b.Data) > 0 {
		t.Errorf("restored %+v, %v", b, err)
	}
	want(exitOK, `host "one"`, "restore", file, "--state-dir", filepath.Join(tmp, "elsewhere"))
	other := filepath.Join(tmp, "other")
	want(exitOK, "", "init", "--state-dir", other, "--token-file", filepath.Join(tmp, "token-2"))
	want(exitUsage, "belongs to another cluster", "restore", file, "--state-dir", other, "--force")
	want(exitUsage, "damaged: no header", "restore", filepath.Join(tmp, "token"), "--state-dir", other)
	want(exitUsage, "no such file", "restore", filepath.Join(tmp, "none"), "--state-dir", other)
}

// TestBackupOfARunningHost: the command asks the admin socket, and refuses a host whose
// state directory is not the one of the command line.
func TestBackupOfARunningHost(t *testing.T) {
	tmp := t.TempDir()
	environ, asked := fakeHost(t, map[string]any{"POST backup": daemon.Backup{Name: "one", StateDir: "/srv/one", Data: []byte("x")}})
	admin := strings.TrimPrefix(environ[0], "FABRIC_ADMIN=")
	file := filepath.Join(tmp, "backup")
	if out, stderr, code := run(t, nil, "backup", "--admin", admin, "--out", file); code != exitOK || asked() != "POST /v1/backup {}" {
		t.Errorf("exit code %d, asked %q: %s%s", code, asked(), out, stderr)
	}
	missing := filepath.Join(tmp, "missing")
	environ = append(environ, "FABRIC_STATE_DIR="+missing)
	if out, stderr, code := run(t, environ, "backup", "--out", file+"-2"); code != exitOK {
		t.Errorf("without --state-dir: exit code %d: %s%s", code, out, stderr)
	}
	environ[0] = "FABRIC_ADMIN=" + missing
	if _, stderr, code := run(t, environ, "backup", "--out", file+"-3"); code != exitUsage || !strings.Contains(stderr, "no fabricd answers") || !strings.Contains(stderr, "holds no cluster") {
		t.Errorf("with neither: exit code %d: %s", code, stderr)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "x" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
