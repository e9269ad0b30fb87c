package sockfile

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyASocketGetsRights(t *testing.T) {
	dir := t.TempDir()
	socket, file, link := filepath.Join(dir, "socket"), filepath.Join(dir, "file"), filepath.Join(dir, "link")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := SetRights(socket, 0o640, os.Getgid()); err != nil {
		t.Errorf("a socket: %v", err)
	}
	for _, path := range []string{file, link} {
		if err := SetRights(path, 0o666, -1); err == nil || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("%s: %v, want a refusal", path, err)
		}
	}
	for path, want := range map[string]os.FileMode{socket: 0o640, file: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}
