package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const chaosScenario = `version: 1
name: small
on: [sim, compose]
cluster: {nodes: 3, detection: fast}
workload: {pairs: mesh, messages: {size: 64..512, rate: 20}, connects: 1}
duration: 8s
timeline:
  - {at: 1s..2s, node: {id: 2, do: kill, for: 1s}}
expect:
  - removed: {node: 2, times: 1, within: 1s}
  - mesh: {within: 5s}
figures: [time_to_removed]
`

// scenarioFile writes a scenario with one text replaced.
func scenarioFile(t *testing.T, name, old, replacement string) string {
	t.Helper()
	if !strings.Contains(chaosScenario, old) {
		t.Fatalf("the scenario has no %q", old)
	}
	file := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(chaosScenario, old, replacement, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// mtuFile writes a scenario whose fault is one of packets.
func mtuFile(t *testing.T) string {
	t.Helper()
	return scenarioFile(t, "mtu", chaosScenario[strings.Index(chaosScenario, "\non: ")+1:], `on: [local]
cluster: {nodes: 3, detection: fast}
workload: {pairs: mesh, messages: {size: 64..512, rate: 20}}
duration: 8s
timeline:
  - {at: 1s, link: {from: 1, to: 2, mtu: 1280, for: 3s}}
expect:
  - removals: {max: 0}
`)
}

// TestASuiteLeavesOutWhatShowsNothing: and prints the reason.
func TestASuiteLeavesOutWhatShowsNothing(t *testing.T) {
	_, stderr, code := run(t, nil, "chaos", "suite", mtuFile(t), "--on", "local", "--providers", "tcp,shm")
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if code != exitUsage || len(lines) != 2 || !strings.HasPrefix(lines[0], "left out: scenario small: mtu: it is one of packets there") ||
		!strings.HasSuffix(lines[1], "no scenario there runs on local") {
		t.Errorf("exit code %d, said %q", code, stderr)
	}
}

// TestChaosRefusesInOneLine holds every mistake to one line, exit code 2 and
// nothing on standard output.
func TestChaosRefusesInOneLine(t *testing.T) {
	good, mtu := scenarioFile(t, "good", "small", "small"), mtuFile(t)
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	t.Setenv("TMPDIR", t.TempDir()) // for the lock of the real labs
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown key", []string{"run", scenarioFile(t, "key", "duration: 8s", "duration: 8s\ndurration: 9s")}, `durration: "durration": unknown key`},
		{"impossible time", []string{"run", scenarioFile(t, "time", "at: 1s..2s", "at: 90s")}, "timeline[0].at"},
		{"no such node", []string{"run", scenarioFile(t, "node", "id: 2", "id: 7")}, `timeline[0].node.id: "7"`},
		{"no file", []string{"run", "/nonexistent/a.yaml"}, "no such file"},
		{"no scenario", []string{"run", t.TempDir()}, "no scenario"},
		{"no such lab", []string{"run", good, "--on", "moon"}, "moon"},
		{"not on this lab", []string{"run", good, "--on", "local"}, "it does not run on local: on: [sim compose]"},
		{"no Docker", []string{"run", good, "--on", "compose"}, "no Docker engine answers at /nonexistent/docker.sock"},
		{"no seeds", []string{"run", good, "--seeds", "0"}, "seeds: 0: want 1 to"},
		{"no repeats", []string{"run", good, "--repeat", "-1"}, "repeat: -1: want 1 to"},
		{"a suite of nothing", []string{"suite", filepath.Dir(good), "--on", "netns"}, "no scenario there runs on netns"},
		{"a suite with a wrong name", []string{"suite", filepath.Dir(good), "--only", "smoll"}, `only: "smoll"`},
		{"too much at a time", []string{"suite", filepath.Dir(good), "--parallel", "99"}, "parallel: 99: want 1 to"},
		{"no load", []string{"run", good, "--load", "0"}, "load: 0: want 1 to 100"},
		{"too much load", []string{"suite", filepath.Dir(good), "--load", "101"}, "load: 101: want 1 to 100"},
		{"providers of a simulation", []string{"run", good, "--providers", "tcp"}, `providers: "tcp": the simulation has none`},
		{"a provider that is none", []string{"suite", filepath.Dir(good), "--on", "compose", "--providers", "pigeon"}, `providers: "pigeon" (flag): want quic`},
		{"an mtu of streams", []string{"run", mtu, "--on", "local", "--providers", "^quic", "--seeds", "2"}, "scenario small: mtu: it is one of packets there, and --providers ^quic has streams alone"},
		{"minimize for real", []string{"minimize", good, "--on", "local"}, "only its runs repeat"},
		{"minimize what is well", []string{"minimize", good}, "breaks nothing"},
		{"no saved run", []string{"check", t.TempDir()}, "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, code := run(t, nil, append([]string{"chaos"}, test.args...)...)
			if strings.Count(stderr, "\n") != 1 {
				t.Errorf("said %q, want one line", stderr)
			}
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, printed %q, said %q; want %d and %q", code, stdout, stderr, exitUsage, test.want)
			}
		})
	}
}

// TestChaosSaysWhatHeld runs a scenario in the simulation: as it is, and with an
// expectation that is a lie.
func TestChaosSaysWhatHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	stdout, stderr, code := run(t, nil, "chaos", "run", scenarioFile(t, "good", "small", "small"), "--seed", "3", "--report", dir)
	if code != exitOK || !strings.HasPrefix(stdout, "green   small on sim, seed 3: ") || !strings.Contains(stdout, "time_to_removed") {
		t.Errorf("exit code %d, printed %q, said %q", code, stdout, stderr)
	}
	stdout, stderr, code = run(t, nil, "chaos", "check", dir, "--json")
	var again struct{ Scenario, Verdict string }
	if err := json.Unmarshal([]byte(stdout), &again); code != exitOK || err != nil || again.Scenario != "small" || again.Verdict != "green" {
		t.Errorf("judged again: exit code %d, printed %q, said %q", code, stdout, stderr)
	}
	lie := scenarioFile(t, "lie", "times: 1", "times: 2")
	stdout, stderr, code = run(t, nil, "chaos", "run", lie)
	if code != exitFail || !strings.HasPrefix(stdout, "broken  small on sim") || !strings.Contains(stdout, "removed: ") {
		t.Errorf("a wrong expectation: exit code %d, printed %q, said %q", code, stdout, stderr)
	}
	short := filepath.Join(t.TempDir(), "short.yaml")
	_, stderr, code = run(t, nil, "chaos", "minimize", lie, "--out", short)
	if code != exitOK || !strings.Contains(stderr, "still breaks removed") {
		t.Errorf("minimize: exit code %d, said %q", code, stderr)
	}
	stdout, stderr, code = run(t, nil, "chaos", "run", short)
	if code != exitFail || !strings.Contains(stdout, "removed: ") {
		t.Errorf("what is left breaks nothing: exit code %d, printed %q, said %q", code, stdout, stderr)
	}
}

// TestSavedHistoriesOfASeedAreTheSame compares the histories that two commands saved.
func TestSavedHistoriesOfASeedAreTheSame(t *testing.T) {
	file := scenarioFile(t, "good", "small", "small")
	var saved [2][]byte
	for i := range saved {
		dir := t.TempDir()
		if _, stderr, code := run(t, nil, "chaos", "run", file, "--seed", "3", "--report", dir); code != exitOK {
			t.Fatalf("exit code %d, said %q", code, stderr)
		}
		var err error
		if saved[i], err = os.ReadFile(filepath.Join(dir, "history.jsonl")); err != nil || len(saved[i]) < 1000 {
			t.Fatalf("%d bytes, %v", len(saved[i]), err)
		}
	}
	if !bytes.Equal(saved[0], saved[1]) {
		t.Error("two runs of one seed have saved different histories")
	}
}

func TestChaosSuiteSumsUp(t *testing.T) {
	good := scenarioFile(t, "good", "small", "small")
	dir := t.TempDir()
	stdout, stderr, code := run(t, nil, "chaos", "suite", filepath.Dir(good), "--total", "4", "--report", dir)
	if code != exitOK || !strings.Contains(stdout, "green   small") || !strings.Contains(stdout, "4 of    4 green") {
		t.Errorf("exit code %d, printed %q, said %q", code, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "suite-sim.json"))
	if err != nil || !json.Valid(text) {
		t.Errorf("the sums: %v, %q", err, text)
	}
	stdout, stderr, code = run(t, nil, "chaos", "page", filepath.Dir(dir))
	page, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "index.html"))
	if code != exitOK || err != nil || !strings.HasPrefix(stdout, "sim      4 runs in ") || !strings.Contains(stdout, "index.html") {
		t.Fatalf("page: exit code %d, printed %q, said %q, %v", code, stdout, stderr, err)
	}
	of := filepath.Join(filepath.Base(dir), "runs", "small-sim-1", "report.html")
	if !strings.Contains(string(page), `href="`+of+`"`) {
		t.Errorf("the page does not lead to %s", of)
	}
	if timeline, err := os.ReadFile(filepath.Join(filepath.Dir(dir), of)); err != nil || !strings.Contains(string(timeline), "<svg") {
		t.Errorf("the page of a run: %v", err)
	}
	if _, stderr, code = run(t, nil, "chaos", "page", dir); code != exitUsage || !strings.Contains(stderr, "no report of a suite") {
		t.Errorf("a page of nothing: exit code %d, said %q", code, stderr)
	}
	stdout, _, code = run(t, nil, "chaos", "validate", good)
	if code != exitOK || !strings.Contains(stdout, "small, 3 nodes, 1 step, 8s, on [sim compose]") {
		t.Errorf("validate: exit code %d, printed %q", code, stdout)
	}
}

// TestTwoRunsAreOnOnePage runs a scenario with two seeds and compares their reports.
func TestTwoRunsAreOnOnePage(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		if _, errs, code := run(t, nil, "chaos", "run", "../../deploy/scenarios/node-killed.yaml", "--seed", fmt.Sprint(i+1), "--report", dir); code != 0 {
			t.Fatalf("run: exit %d: %s", code, errs)
		}
	}
	page := filepath.Join(t.TempDir(), "page.html")
	if _, errs, code := run(t, nil, "chaos", "compare", dirs[0], dirs[1], "--out", page); code != 0 {
		t.Fatalf("compare: exit %d: %s", code, errs)
	}
	text, err := os.ReadFile(page)
	for _, want := range []string{"seed 1 on sim", "seed 2 on sim", "Throughput", "Latency: connect", "Errors", "time_to_removed"} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q, %v", want, err)
		}
	}
	if _, errs, code := run(t, nil, "chaos", "compare", dirs[0], t.TempDir()); code != 2 || !strings.Contains(errs, "report.json") {
		t.Errorf("without a report: exit %d: %s", code, errs)
	}
}
