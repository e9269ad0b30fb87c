package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// scratch is a directory of this test binary.
var scratch string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{hogCommand, endCommand, relayCommand}, os.Args[1]) { // a test has started this program
		main()
	}
	var err error
	if scratch, err = os.MkdirTemp("", "fabric-bench-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(scratch)
		os.Exit(code)
	}))
}

// runBench runs a command line.
func runBench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// temporaries gives the benchmark's temporary files a directory of their own, and fails if any file
// is left in it.
func temporaries(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fb") // a TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		os.RemoveAll(dir)
	})
}

var fabricd struct {
	once sync.Once
	exe  string
	err  error
}

// buildFabricd returns a fabricd of this tree, built once into scratch.
func buildFabricd(t *testing.T) string {
	t.Helper()
	fabricd.once.Do(func() {
		fabricd.exe = filepath.Join(scratch, "fabricd")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", fabricd.exe, "../fabricd")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fabricd.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if fabricd.err != nil {
		t.Fatal(fabricd.err)
	}
	return fabricd.exe
}

func TestWrongCommandLinesSayWhy(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"nonsense", "unknown command"},
		{"run msg", "unknown command"},
		{"run --runs 0", "--runs"},
		{"run --duration 1ms", "--duration"},
		{"run --only nothing", `no case "nothing"`},
		{"run --way 25ms", "--way"},
		{"run --loopback --way 25ms/1Gbit", "--way"},
		{"run --fabricd /nonexistent", "--fabricd"},
		{"compare a", "accepts 2 arg"},
		{"compare a b --threshold NaN", "--threshold"},
	} {
		code, _, errs := runBench(t, strings.Fields(tt.args)...)
		if code != exitUsage || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", tt.args, code, errs, exitUsage, tt.says)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	for _, args := range [][]string{{}, {"run"}, {"list"}, {"compare"}} {
		code, out, _ := runBench(t, append(args, "--help")...)
		if code != exitOK || !strings.Contains(out, "Examples:") || !strings.Contains(out, "fabric-bench "+strings.Join(args, " ")) {
			t.Errorf("%v --help: exit code %d, %s", args, code, out)
		}
	}
}

func TestListHasEveryCaseOnce(t *testing.T) {
	code, out, _ := runBench(t, "list")
	if code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	seen := map[string]bool{}
	for _, c := range allCases() {
		if seen[c.name] || len(c.rows) == 0 || !strings.Contains(out, c.name+" ") {
			t.Errorf("case %s: twice, without rows or not in the list", c.name)
		}
		seen[c.name] = true
		for _, r := range c.rows {
			if r.baseline != "" && !slices.Contains(c.sources, r.baseline) {
				t.Errorf("%s: its baseline %s is not measured", c.name, r.baseline)
			}
		}
	}
	some, err := choose(allCases(), []string{"message-8", "idle"})
	if err != nil || len(some) != 3 {
		t.Errorf("%d cases, %v; want the two of 8 bytes and idle", len(some), err)
	}
}

func TestFabricdIsFound(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "fabricd")
	if err := os.WriteFile(exe, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := findFabricd(exe); err != nil || got != exe {
		t.Errorf("named: %s, %v", got, err)
	}
	t.Setenv("PATH", dir)
	if got, err := findFabricd(""); err != nil || got != exe {
		t.Errorf("on $PATH: %s, %v", got, err)
	}
	t.Setenv("PATH", "")
	if got, err := findFabricd(""); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("nowhere: %s, %v; want how to get it", got, err)
	}
}

func TestInterruptionEndsTheRunAndLeavesNothing(t *testing.T) {
	temporaries(t)
	exe := buildFabricd(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	code := execute(ctx, []string{"run", "--loopback", "--fabricd", exe, "--only", "message", "--duration", "20s"}, &out, &errs)
	if code != exitFail || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit code %d, want %d: %s", code, exitFail, &errs)
	}
}
