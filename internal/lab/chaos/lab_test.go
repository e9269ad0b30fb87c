package chaos

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// busy is a workload with all kinds of traffic, light enough for a machine that
// runs other tests beside it.
const busy = `
version: 1
name: test
on: [local, netns, compose]
cluster: {nodes: 3, detection: normal}
workload:
  pairs: mesh
  messages: {size: 64..2048, rate: 20}
  rma: {size: 8..4096, rate: 20, window: 64KiB, reads: 30%, fence: 5, signal: 3}
  connects: 2
  waiters: true
`

const killed = busy + `
duration: 3s
timeline: [{at: 1s, node: {id: 2, do: kill, for: 500ms}}]
expect: [{removed: {node: 2, times: 1, within: 1s}}, {errors: {to: 2, within: 1s}}, {unharmed: {nodes: [0, 1]}}]
figures: [time_to_error, time_to_removed]
`

// real holds the tests of real labs to one at a time.
var real sync.Mutex

// once runs a scenario in a lab and checks that it leaves nothing.
func once(t *testing.T, kind scenario.Lab, text string, seed uint64) *Outcome {
	t.Helper()
	real.Lock()
	defer real.Unlock()
	l, err := OpenLab(kind)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out := Once(t.Context(), l, decode(t, text).Resolve(seed), &Options{Exe: fabricdExe, Say: func(line string) { t.Log(line) }})
	nothingLeft(t)
	return out
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if left := ownLeftovers(os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// green fails t unless everything held.
func green(t *testing.T, out *Outcome) {
	t.Helper()
	if out.Verdict() != report.Green {
		t.Fatalf("%v:\n%s", out.Verdict(), strings.Join(out.Problems(), "\n"))
	}
}

// exercised fails t unless the invariants of these names judged something.
func exercised(t *testing.T, out *Outcome, names ...string) {
	t.Helper()
	for _, name := range names {
		j, known := out.Result.Invariant(name)
		if !known || j.Verdict != check.Held {
			t.Errorf("invariant %s: %v", name, j.Verdict)
		}
	}
}

func TestLocalKill(t *testing.T) {
	out := once(t, scenario.Local, killed, 1)
	green(t, out)
	exercised(t, out, "whole", "fired", "prefix", "reset-all", "no-hang", "events", "fencing", "rma", "fence", "windows", "leaks", "isolation", "survival")
	for _, f := range out.Result.Figures {
		if f.Count == 0 || f.Max <= 0 {
			t.Errorf("figure %s: %+v", f.Name, f)
		}
	}
}

// TestALie expects an event that does not happen.
func TestALie(t *testing.T) {
	text := strings.Replace(killed, "removed: {node: 2, times: 1, within: 1s}", "removed: {node: 2, times: 2, within: 1s}", 1)
	if out := once(t, scenario.Local, text, 1); out.Verdict() != report.Broken || len(out.Result.Problems()) == 0 {
		t.Errorf("a wrong expectation is %v: %v", out.Verdict(), out.Problems())
	}
}

// TestFaultsOfAllKinds does everything else that the local lab can do.
func TestFaultsOfAllKinds(t *testing.T) {
	green(t, once(t, scenario.Local, busy+`
duration: 7s
timeline:
  - {at: 500ms, node: {id: 1, do: stop, for: 300ms}}
  - {at: 1s, link: {from: 0, to: 1, drop: 5%, delay: 2ms, jitter: 1ms, both: true, for: 1s}}
  - {at: 1s, app: {node: 2, do: kill, for: 200ms}}
  - {at: 2s, app: {node: 1, do: slow, rate: 5, for: 500ms}}
  - {at: 2500ms, app: {node: 0, do: close}}
  - {at: 3s, app: {node: 1, do: stop, for: 200ms}}
  - {at: 3s, fault: {node: 2, kind: clock, offset: 1h, for: 500ms}}
  - {at: 3500ms, fault: {node: 1, kind: crash, restart: 200ms}}
  - {at: 5s, node: {id: 2, do: terminate, for: 200ms}}
expect: [{mesh: {within: 5s}}]
`, 2))
}

// TestNetnsPartition cuts a node off by the kernel. Without root it is refused.
func TestNetnsPartition(t *testing.T) {
	out := once(t, scenario.Netns, strings.Replace(busy, "[local, netns, compose]", "[netns]", 1)+`
duration: 8s
timeline:
  - {at: 500ms, link: {from: 0, to: 1, drop: 10%, for: 500ms}}
  - {at: 1s, link: {from: 1, to: 2, rate: 64kbit/s, for: 900ms}}
  - {at: 1s, link: {from: 2, to: 0, duplicate: 20%, for: 500ms}}
  - {at: 2s, network: {node: 1, do: disconnect, for: 300ms}}
  - {at: 3s, partition: {groups: [[0, 1], [2]], for: 4s}}
expect: [{removed: {node: 2, times: 1, within: 3s}}, {mesh: {within: 5s}}]
figures: [time_to_removed]
`, 1)
	if os.Geteuid() != 0 {
		if !Refused(out.Err) || strings.Contains(out.Err.Error(), "\n") {
			t.Errorf("without root: %v, want one line that refuses it", out.Err)
		}
		return
	}
	green(t, out)
	if f := out.Result.Figures[0]; f.Count < 2 {
		t.Errorf("figure %s has %d samples", f.Name, f.Count)
	}
}

// background runs fabricd chaos as users do, in the background, and returns when it
// has said a line with word.
func background(t *testing.T, word string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(fabricdExe, append([]string{"chaos"}, args...)...)
	cmd.Env = environ()
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var said bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(said.String(), word) {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			t.Fatalf("it has not said %q but:\n%s", word, said.String())
		}
	}
	go func() { // until its end
		for {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	return cmd
}

// TestInterruptAndKill ends the command in the middle of a run, by Ctrl-C and by
// SIGKILL; nothing is left either way. A second one meanwhile is refused.
func TestInterruptAndKill(t *testing.T) {
	real.Lock()
	defer real.Unlock()
	file := filepath.Join(t.TempDir(), "long.yaml")
	text := strings.Replace(killed, "duration: 3s", "duration: 60s", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lab := "local"
	if os.Geteuid() == 0 {
		lab = "netns"
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		cmd := background(t, "node kill", "run", file, "--on", lab)
		children := descendants(cmd.Process.Pid)
		if len(children) < 5 {
			t.Errorf("%d processes run, want two daemons and three applications at least", len(children))
		}
		refused := exec.Command(fabricdExe, "chaos", "run", file, "--on", "local")
		refused.Env = environ()
		if said, err := refused.CombinedOutput(); exitCode(err) != 2 || bytes.Count(said, []byte("\n")) != 1 || !bytes.Contains(said, []byte("another run")) {
			t.Errorf("a second run: %v, said %q", err, said)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); sig != syscall.SIGKILL && exitCode(err) != 2 {
			t.Errorf("after %v: %v, want exit code 2", sig, err)
		}
		err := await(t.Context(), 20*time.Second, func() error { // the cleaner is not our child
			if left := ownLeftoversOf(cmd.Process.Pid); len(left) > 0 {
				return errors.New(strings.Join(left, " "))
			}
			for _, pid := range children {
				if s := stateOf(pid); s != "" && s != "Z" {
					return errors.New("a process still runs")
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("after %v: left behind: %v", sig, err)
		}
	}
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return 0
}

// descendants returns the processes below pid, without the cleaner.
func descendants(pid int) []int {
	var all []int
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		var child int
		for _, c := range filepath.Base(dir) {
			child = child*10 + int(c-'0')
		}
		fields := statFields(child)
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) && !bytes.Contains(args, []byte("cleanup")) {
			all = append(all, child)
		}
	}
	return all
}

// ownLeftoversOf returns the leftovers of a process's runs.
func ownLeftoversOf(pid int) []string {
	var left []string
	for _, dir := range slices.Concat([]string{os.TempDir(), netnsDir}, cgroupDirs) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix+strconv.Itoa(pid)+"-") {
				left = append(left, e.Name())
			}
		}
	}
	return left
}

// TestAHarnessFailureIsNoVerdict runs a lab whose fabricd does not exist.
func TestAHarnessFailureIsNoVerdict(t *testing.T) {
	real.Lock()
	defer real.Unlock()
	l, err := OpenLab(scenario.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := Once(ctx, l, decode(t, killed).Resolve(1), &Options{Exe: filepath.Join(t.TempDir(), "nothing")})
	if out.Verdict() != report.Harness || out.Err == nil {
		t.Errorf("%v: %v", out.Verdict(), out.Problems())
	}
	nothingLeft(t)
}

// TestARunOfAFailedLabIsMadeOnceMore: alone, after the others, and then its result
// counts; a single run is not made again.
func TestARunOfAFailedLabIsMadeOnceMore(t *testing.T) {
	real.Lock()
	defer real.Unlock()
	l, err := OpenLab(scenario.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	job := Job{Named: Named{Scenario: decode(t, killed)}, Seed: 1}
	for _, jobs := range [][]Job{{job}, {job, job}, {job, job, job, job, job}} {
		tried, reported := 0, 0
		opts := &Options{Exe: filepath.Join(t.TempDir(), "nothing"), Say: func(line string) {
			if strings.Contains(line, "once more, alone") {
				tried++
			}
		}}
		RunAll(t.Context(), l, jobs, opts, func(_ Job, out *Outcome) {
			reported++
			if out.Verdict() != report.Harness {
				t.Errorf("%v: %v", out.Verdict(), out.Problems())
			}
		})
		want := min(len(jobs), maxAgain)
		if len(jobs) == 1 {
			want = 0
		}
		if reported != len(jobs) || tried != want {
			t.Errorf("of %d jobs %d are reported and %d made again, want %d", len(jobs), reported, tried, want)
		}
	}
	nothingLeft(t)
}
