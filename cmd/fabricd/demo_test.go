package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// self returns a command that runs this test binary as fabricd, with a
// directory of its own for temporary files.
func self(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "fdt") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe, args...) // tests that end early end it themselves
	// The race detector would let every process sleep for a second at its end.
	cmd.Env = append(os.Environ(), asCommand+"=1", "TMPDIR="+tmp, "GORACE=atexit_sleep_ms=0")
	return cmd, tmp
}

// processes returns the command lines of the processes that name dir.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil { // it has ended meanwhile
			continue
		}
		if line := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}

// nothingLeft checks that a demo has left no process and no file.
func nothingLeft(t *testing.T, tmp string) {
	t.Helper()
	if left := processes(t, tmp); len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
	entries, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left", e.Name())
	}
}

// TestDemo runs the demo as users do and checks its output step by step.
func TestDemo(t *testing.T) {
	cmd, tmp := self(t, "demo", "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v\n%s%s", err, out, stderr.Bytes())
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v, want less than 30s", took)
	}
	nothingLeft(t, tmp)
	var names []string
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var s struct {
			step
			Summary bool
			Steps   int
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if !s.OK {
			t.Errorf("not right: %s", lines.Text())
		}
		if s.Summary {
			if s.Steps != len(names) {
				t.Errorf("the summary counts %d steps, there were %d", s.Steps, len(names))
			}
			continue
		}
		names = append(names, s.Name)
		if s.Step != len(names) {
			t.Errorf("step %d has the number %d", len(names), s.Step)
		}
	}
	for _, want := range append(stepsOfREADME(t),
		"fabricd init", "fabricd run --role host", "all three see all three", "they exchange messages",
		"bob polls, sees her signal", "bob reads alice's memory", "alice polls, sees his signal", "alice reads bob's memory",
		"kill -9 node-2", "alice's receive: ECONNRESET", "NODE_REMOVED at node-1", "NODE_REMOVED at host",
		"node-2 runs again", "NODE_ADDED at node-1", "a message on the new connection",
		"the server streams", "the reader: ECONNRESET, and no end",
		"fabricd nodes ban node-2", "alice's connection: ECONNRESET", "no link to it at node-1", "two others noticed nothing", "fabricd token revoke",
		"node-2 knows that it is banned", "a newcomer with that token", "fabricd nodes allow node-2", "node-2 comes back by itself", "nothing left behind",
	) {
		if !strings.Contains("\n"+strings.Join(names, "\n")+"\n", "\n"+want+"\n") {
			t.Errorf("no step %q in %q", want, names)
		}
	}
}

// stepsOfREADME returns the names of the steps that README.md shows.
func stepsOfREADME(t *testing.T) (names []string) {
	t.Helper()
	_, block, _ := strings.Cut(readme(t), "```text\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		_, name, _ := strings.Cut(line, " s  ok    ")
		name, _, _ = strings.Cut(name, "  ")
		names = append(names, name)
	}
	if len(names) != 4 {
		t.Errorf("README.md shows %d steps of the demo, want 4", len(names))
	}
	return names
}

// startDemo starts a demo and returns when its output contains what.
func startDemo(t *testing.T, what string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	cmd, tmp = self(t, "demo")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), what) {
			return cmd, tmp
		}
	}
	t.Fatalf("the demo never said %q: %v", what, cmd.Wait())
	return nil, ""
}

func TestDemoInterrupted(t *testing.T) {
	for _, at := range []string{"fabricd init", "bob attaches", "kill -9 node-2"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			cmd, tmp := startDemo(t, at)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFail {
				t.Errorf("got %v, want exit code %d", err, exitFail)
			}
			nothingLeft(t, tmp)
		})
	}
}

// TestDemoWhoseReaderGoesAway: it ends early, and cleans up.
func TestDemoWhoseReaderGoesAway(t *testing.T) {
	cmd, tmp := self(t, "demo")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Error(err)
	}
	out.Close()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != exitFail {
		t.Errorf("it ended with %v, want exit code %d", err, exitFail)
	}
	nothingLeft(t, tmp)
}

// TestDemoKilled: its processes do not survive a demo that cannot clean up.
func TestDemoKilled(t *testing.T) {
	cmd, tmp := startDemo(t, "bob attaches")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a killed demo succeeded")
	}
	noneLeft(t, tmp)
}

// noneLeft waits until no process names dir. The kernel has sent them signals; it may
// take a moment until they are gone.
func noneLeft(t *testing.T, dir string) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; {
		left := processes(t, dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("processes are left:\n%s", strings.Join(left, "\n"))
		}
		wait.For(t.Context().Done(), 5*time.Millisecond)
	}
}

// TestDemoAppsRefuseNonsense covers arguments that the demo itself never passes.
func TestDemoAppsRefuseNonsense(t *testing.T) {
	if _, stderr, code := run(t, nil, "demo-app", "carol"); code != exitUsage || !strings.Contains(stderr, "want alice, bob, bob-again, bob-banned, streamer, reader, witness or bystander") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	_, stderr, code := run(t, nil, "demo-app", "alice", "--socket", filepath.Join(t.TempDir(), "no"))
	if code != exitFail || !strings.Contains(stderr, "attach") {
		t.Errorf("without a fabricd: exit code %d, %q", code, stderr)
	}
}

func TestTimelineShowsWhatIsWrong(t *testing.T) {
	var out bytes.Buffer
	tl := newTimeline(t.Context(), &out, false)
	if tl.step("right", "fine", nil) != nil || tl.step("wrong", "fine", syscall.EIO) != syscall.EIO {
		t.Error("a step does not return its error")
	}
	tl.close()
	for _, want := range []string{"ok    right", "FAIL  wrong", "input/output error", "2 steps", "1 of them wrong"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestTimelineOfAnInterruptHasNoWrongStep: the steps that it cuts off have not failed.
func TestTimelineOfAnInterruptHasNoWrongStep(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tl := newTimeline(ctx, &out, false)
	if err := tl.step("cut off", "fine", syscall.EIO); err == nil {
		t.Error("a step that was cut off returns no error")
	}
	tl.close()
	if strings.Contains(out.String(), "FAIL") || strings.Contains(out.String(), "wrong") || !strings.Contains(out.String(), "1 steps in 0.0 s, interrupted") {
		t.Errorf("printed\n%s", out.String())
	}
}
