package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// fake puts a program of this name on $PATH that runs a script.
func fake(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestMissingProgramsSayHowToGetThem(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := &children{dir: t.TempDir()}
	for _, pair := range []tools.Pair{tools.UCXTest{Transport: "tcp", Name: "tag_lat", Size: 8, Iterations: 1}.Pair(1), tools.PingPongPair(1, "tcp", "msg", 8, 1)} {
		if _, err := c.runPair(t.Context(), pair); !errors.Is(err, tools.ErrNotInstalled) || !strings.Contains(err.Error(), "make bench-baselines") {
			t.Errorf("%v, want how to install it", err)
		}
	}
}

// ping runs fi_pingpong.
func ping(ctx context.Context, t *testing.T) ([]byte, error) {
	port, err := tools.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	c := &children{dir: t.TempDir()}
	return c.runPair(ctx, tools.PingPongPair(port, "tcp", "msg", 8, 1))
}

func TestServersThatEndSayWhy(t *testing.T) {
	fake(t, "fi_pingpong", "echo no such thing; exit 3")
	if _, err := ping(t.Context(), t); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v, want what the server says", err)
	}
}

func TestServersThatNeverListenAreEnded(t *testing.T) {
	fake(t, "fi_pingpong", "exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := ping(ctx, t); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that time is over", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("that took %v", took)
	}
}
