package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/daemon"
)

// TestNoSecretIsInADebugArchive: of a host whose state holds every kind of them.
func TestNoSecretIsInADebugArchive(t *testing.T) {
	dir, err := os.MkdirTemp("", "fdd") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	token, out := filepath.Join(dir, "token"), filepath.Join(dir, "out.tar.gz")
	c, err := daemon.Load("", nil, map[string]string{"role": "host", "state-dir": filepath.Join(dir, "state"), "bind": "127.0.0.1",
		"data-port": "0", "gossip-port": "0", "admin": filepath.Join(dir, "admin"), "socket": filepath.Join(dir, "app")})
	if err == nil {
		_, err = daemon.Init(c, token)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := daemon.Start(ctx, c, daemon.Options{Log: zerolog.Nop(), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := run(t, nil, "debug", "--admin", c.Local.AdminSocket, "--out", out, "--json")
	var listed debugArchive
	if err := json.Unmarshal([]byte(stdout), &listed); err != nil || code != exitOK || listed.Archive != out {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	files := unpack(t, out)
	for _, want := range []string{"status.json", "nodes.json", "links.json", "conns.json", "ports.json", "windows.json", "events.jsonl",
		"goroutines.txt", "memory.json", "settings.json", "version.json", "doctor.json", "metrics.prom"} {
		if len(files[want]) == 0 || !slices.ContainsFunc(listed.Files, func(f debugFile) bool { return f.Name == want && f.Bytes == len(files[want]) }) {
			t.Errorf("%s is not in it, or not listed: %+v", want, listed)
		}
	}
	if !strings.Contains(string(files["metrics.prom"]), "\nfabricd_joined 1\n") {
		t.Errorf("metrics %.300s", files["metrics.prom"])
	}
	if !strings.Contains(string(files["goroutines.txt"]), "membership") || !strings.Contains(string(files["events.jsonl"]), `"self"`) {
		t.Errorf("goroutines %.200s\nevents %s", files["goroutines.txt"], files["events.jsonl"])
	}
	all := bytes.Join([][]byte{[]byte(stdout), bytes.Join(slices.Collect(values(files)), nil)}, nil)
	for name, secret := range secrets(t, c.StateDir, token) {
		for _, form := range forms(secret) {
			if bytes.Contains(all, form) {
				t.Errorf("the archive has %s", name)
			}
		}
	}
	if _, stderr, code := run(t, nil, "debug", "--admin", c.Local.AdminSocket, "--out", out); code != exitFail || !strings.Contains(stderr, "exists") {
		t.Errorf("over a file: exit code %d, %s", code, stderr)
	}
}

func values(files map[string][]byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, text := range files {
			if !yield(text) {
				return
			}
		}
	}
}

// unpack returns the files of an archive by their names below its directory.
func unpack(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for in := tar.NewReader(zip); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if head.Mode != 0o600 {
			t.Errorf("%s has mode %o", head.Name, head.Mode)
		}
		if files[filepath.Base(head.Name)], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

// secrets returns the texts that must be in no archive: the token, and long words of
// the files with keys.
func secrets(t *testing.T, state, token string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := strings.TrimSpace(string(read(token)))
	all["the token"], all["the end of the token"] = []byte(text), []byte(text[len(text)-20:])
	for _, name := range []string{"authority", "credentials"} {
		body := string(read(filepath.Join(state, name)))
		i := strings.Index(body, "PRIVATE KEY-----\n")
		if i < 0 {
			t.Fatalf("%s has no key", name)
		}
		all["the key of "+name] = []byte(body[i+len("PRIVATE KEY-----\n"):][:40])
	}
	for _, name := range []string{"keyring", "reset-key"} {
		body := read(filepath.Join(state, name))
		all[name] = body[len(body)-16:]
	}
	return all
}

// forms are how a secret may be written.
func forms(secret []byte) [][]byte {
	b32 := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(secret)
	return [][]byte{secret, []byte(hex.EncodeToString(secret)), []byte(base64.RawStdEncoding.EncodeToString(secret)), []byte(strings.ToLower(b32)), []byte(b32)}
}
