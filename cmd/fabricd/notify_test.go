package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTheServiceManagerIsNotified: a real fabricd with a socket in systemd's place.
func TestTheServiceManagerIsNotified(t *testing.T) {
	dir, err := os.MkdirTemp("", "fd") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	state := filepath.Join(dir, "state")
	if _, stderr, code := run(t, nil, "init", "--state-dir", state, "--token-file", filepath.Join(dir, "token")); code != exitOK {
		t.Fatal(stderr)
	}
	cmd, _ := self(t, "run", "--role", "host", "--state-dir", state, "--bind", "127.0.0.1", "--data-port", "0", "--gossip-port", "0",
		"--socket", filepath.Join(dir, "app"), "--admin", filepath.Join(dir, "admin"))
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=300000")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // it has ended if all went well
	received := func(want string) {
		t.Helper()
		var got []string
		for b := make([]byte, 4096); ; {
			if err := manager.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := manager.Read(b)
			if err != nil {
				t.Fatalf("no %s: %v; received %q", want, err, got)
			}
			if got = append(got, string(b[:n])); strings.HasPrefix(got[len(got)-1], want) {
				return
			}
		}
	}
	received("READY=1")
	received("STATUS=joined")
	received("WATCHDOG=1")
	received("WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	received("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"fabricd starts", "version=", "role=host", "data=127.0.0.1:", "admin=" + dir, "socket=" + dir} {
		if first, _, _ := strings.Cut(log.String(), "\n"); !strings.Contains(first, want) {
			t.Errorf("the first line of the log says no %q: %s", want, first)
		}
	}
}
