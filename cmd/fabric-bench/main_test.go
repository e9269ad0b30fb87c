package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric"
)

// scratch is a directory of this test binary.
var scratch string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{hogCommand, deployedEnd}, os.Args[1]) { // a test has started this program
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

// document runs a command line that must succeed and returns its JSON.
func document(t *testing.T, args ...string) *Document {
	t.Helper()
	code, out, errs := runBench(t, append(args, "--format", "json", "--quiet")...)
	if code != exitOK {
		t.Fatalf("%v: exit code %d: %s", args, code, errs)
	}
	d, err := readJSON(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// temporaries gives what the benchmark starts a directory of its own, and
// fails if anything is left in it.
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

func TestEveryTestRunsAndChecksItsBytes(t *testing.T) {
	// Streams check their bytes if there are more operations than slots, at most 64.
	for _, tt := range []struct {
		provider, sizes, reps string
		iters                 int64
	}{
		{providerMem, "1,3000", "1", 66}, {providerLoop, "64", "2", 66}, {providerQUIC, "3000", "1", 66}, {providerAttach, "3000", "1", 66},
		{providerTCP, "3000", "1", 66}, {providerTCPPlain, "3000", "1", 66}, {providerTCPLow, "64", "1", 66},
		{providerAttachTCP, "3000", "1", 66}, {providerAttachQUIC, "3000", "1", 66}, {providerAttachLow, "64K", "1", 18}, // as many slots as there are of 64K, and a few
	} {
		t.Run(tt.provider, func(t *testing.T) {
			temporaries(t)
			d := document(t, "local", "--provider", tt.provider, "--fabricd", buildFabricd(t), "--size", tt.sizes, "--iters", fmt.Sprint(tt.iters),
				"--warmup", "3", "--reps", tt.reps, "--rate", "20000", "--conns", "10", "--pairs", "2", "--validate", "--seed", "9")
			sizes := strings.Count(tt.sizes, ",") + 1
			for _, one := range tests() {
				want := rowsWanted(one, sizes, tt.provider)
				if got := countRows(t, d, one, tt.provider, tt.iters); got != want {
					t.Errorf("%s over %s: %d rows, want %d", one.name, tt.provider, got, want)
				}
				anchor := anchorOf(tt.provider)
				if one.anchor == nil || one.special != nil || anchor == "" {
					continue
				}
				if one.onlyBeside {
					anchor = one.beside[0]
				}
				if got := countRows(t, d, one, anchor, tt.iters); got != want {
					t.Errorf("%s over %s: %d rows, want %d", one.name, anchor, got, want)
				}
			}
			for _, note := range d.Notes {
				if strings.Contains(note, "is not measured") && !strings.HasPrefix(note, "mmap") {
					t.Errorf("note %q", note)
				}
			}
		})
	}
}

// rowsWanted returns how many rows of ours a test gives with --pairs 2 and
// --conns 10.
func rowsWanted(tt *test, sizes int, provider string) int {
	oneNode := provider == providerAttach || provider == providerAttachLow || provider == providerLoop
	switch {
	case strings.HasPrefix(tt.name, "mmap") && !oneNode:
		return 0
	case tt.name == "pairs":
		return 2 * sizes
	case tt.name == "conn_scale", tt.name == "conn_mixed", tt.name == "window_scale":
		return 2
	case tt.name == "msg_mt_lat", tt.name == "window_open_cached":
		return 2 * sizes
	case tt.name == "rma_align":
		return len(shifts) * sizes
	case tt.sizeless, tt.fixed > 0:
		return 1
	}
	return sizes
}

// countRows counts the rows of a test and checks each.
func countRows(t *testing.T, d *Document, tt *test, provider string, iters int64) (n int) {
	t.Helper()
	for _, r := range d.Results {
		if r.Test != tt.name || r.Provider != provider {
			continue
		}
		n++
		if r.Errors != 0 || r.Reps != int64(len(r.PerRep)) || r.Validated == tt.sizeless {
			t.Errorf("%s, %d bytes: errors %d, reps %d, validated %v", r.Test, r.Size, r.Errors, r.Reps, r.Validated)
		}
		if !r.Median.measured() || r.Median <= 0 || r.Min > r.Median || r.Max < r.Median || r.Iters < 1 {
			t.Errorf("%s, %d bytes: %s is %v, from %v to %v, of %d operations", r.Test, r.Size, r.Figure, r.Median, r.Min, r.Max, r.Iters)
		}
		if tt.special != nil {
			continue
		}
		if want := iters * r.Reps * r.Pairs; r.Iters != want || r.Warmup != 3 || !tt.sizeless && r.Pairs != 2 {
			t.Errorf("%s, %d bytes: iters %d, want %d, warmup %d, pairs %d", r.Test, r.Size, r.Iters, want, r.Warmup, r.Pairs)
		}
		if measured := r.BWAvg.measured(); measured != tt.kind.timesAll() || r.LatP50.measured() == measured {
			t.Errorf("%s, %d bytes: bandwidth %v, latency %v", r.Test, r.Size, r.BWAvg, r.LatP50)
		}
		checkWire(t, r, tt)
		if (r.RTT != nil) != tt.kind.half {
			t.Errorf("%s: round trips %v, want them only of *_lat", r.Test, r.RTT)
		}
	}
	return n
}

// checkWire checks how many bytes of packets there were, where there is a wire.
func checkWire(t *testing.T, r Result, tt *test) {
	t.Helper()
	if !slices.Contains([]string{providerQUIC, rawProvider, providerTCP, providerTCPPlain, providerTCPLow, providerAttachQUIC, providerAttachTCP}, r.Provider) {
		if r.WireBytes.measured() {
			t.Errorf("%s over %s, %d bytes: %v bytes of packets without a wire", r.Test, r.Provider, r.Size, r.WireBytes)
		}
		return
	}
	moves := tt.group == groupMessages || tt.group == groupRMA
	// Much more than 1 where packets are lost, as on a busy machine.
	if moves && (!r.WireBytes.measured() || r.Size >= 1000 && (r.WireBytes < 1 || r.WireBytes > 20)) {
		t.Errorf("%s over %s, %d bytes: %v bytes of packets for each of payload", r.Test, r.Provider, r.Size, r.WireBytes)
	}
}

func TestFormatsAgree(t *testing.T) {
	temporaries(t)
	args := []string{"run", "msg_lat", "msg_bw", "--provider", "mem", "--size", "64", "--iters", "20", "--reps", "1", "--quiet"}
	code, out, errs := runBench(t, append(args, "--format", "csv")...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	rows, err := readCSV(strings.NewReader(out))
	if err != nil || len(rows) != 2 || rows[0].Test != "msg_lat" || rows[1].Test != "msg_bw" || rows[0].Schema != schemaVersion {
		t.Errorf("rows %+v, %v", rows, err)
	}
	code, out, _ = runBench(t, args...)
	if code != exitOK || !strings.Contains(out, "p99.99") || !strings.Contains(out, "MiB/s") || !strings.Contains(out, "msg_bw") {
		t.Errorf("exit code %d, table:\n%s", code, out)
	}
}

func TestTableShowsRatiosAndTargets(t *testing.T) {
	no, most := false, latencyTarget
	var b strings.Builder
	err := writeTable(&b, &Document{
		Ratios: []Ratio{{Test: "msg_lat", Size: 64, Figure: "lat_p50_us", Anchor: rawProvider, Ours: 12, Raw: 10, Ratio: 1.2, Min: 1.1, Max: 1.3, AtMost: &most, Reached: &no}},
		Checks: []Check{atMost("kill -9", 17, "ms", 250), atMost("idle", 0.7, "%", 0.5)},
		Idle:   []Idle{{Name: "host", CPU: 0.7, RSS: 20, CPUs: []figure{0.7}, RSSs: []figure{20}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Ours / anchor", "raw-quic", "1.20", "1.10-1.30", "≤ 1.15 NOT reached", "≤ 250 ms", "reached", "NOT reached", "host"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestWrongCommandLinesSayWhy(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"run", "want the name of a test"},
		{"run nothing", `no test "nothing"`},
		{"run nothing", "fail_detect, false_positive_rate, idle"},
		{"run msg_lat idle", "is run alone: `fabric-bench run idle`"},
		{"run msg_lat --provider udp", `no provider "udp"`},
		{"run mmap_load --provider raw-memcpy", `no provider "raw-memcpy"`},
		{"run msg_lat --pairs 0", "--pairs"},
		{"run msg_lat --window 5000", "--window"},
		{"run msg_lat --rate 0", "--rate"},
		{"run conn_scale --conns 0", "--conns"},
		{"compare", "accepts between 1 and 2"},
		{"compare a b --threshold -1", "--threshold"},
		{"compare a b --format csv", "--format"},
		{"run msg_lat --size 0", `--size "0"`},
		{"run msg_bw --size 1025M", `--size "1025M"`},
		{"run msg_bw --size 2G", `--size "2G"`},
		{"run msg_bw msg_burst --size 65M", "--size: msg_burst of 65M: it takes sizes up to 64M; up to 1024M takes msg_bw"},
		{"local --size 1GiB", "it takes sizes up to 64M"},
		{"run msg_lat --size 8 --sweep", "exclude"},
		{"run msg_lat --iters 5 --duration 1s", "exclude"},
		{"run msg_lat --iters -1", "--iters"},
		{"run msg_lat --warmup -2", "--warmup"},
		{"run msg_lat --reps 0", "--reps"},
		{"run msg_lat --seed 0", "--seed"},
		{"run msg_lat --format xml", "--format"},
		{"run msg_lat --peer here", "--peer"},
		{"run msg_lat --peer 1:0", "--peer"},
		{"run msg_lat --peer 1:5 --provider mem", "exclude"},
		{"run msg_lat --nonsense", "unknown flag"},
		{"run fail_detect --nodes 2", "--nodes"},
		{"run fail_detect --kills 0 --stops 0", "--kills"},
		{"run fail_detect --detection hasty", "--detection"},
		{"run fail_detect --fabricd /nonexistent", "--fabricd"},
		{"run false_positive_rate --hogs -1", "--hogs"},
		{"run false_positive_rate --duration 1ms", "--duration"},
		{"run false_positive_rate --reps 0", "--reps"},
		{"run idle --duration 1ms", "--duration"},
		{"run idle --settle 2h", "--settle"},
		{"run idle --reps 0", "--reps"},
		{"compare a b --part=some", "--part"},
		{"run idle --format csv", "--format"},
		{"nonsense", "unknown command"},
	} {
		code, _, errs := runBench(t, strings.Fields(tt.args)...)
		if code != exitUsage || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", tt.args, code, errs, exitUsage, tt.says)
		}
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "64": 64, "4K": 4096, "4k": 4096, "1M": 1 << 20, "64KiB": 64 << 10, "64M": 64 << 20, "1G": 1 << 30, "1GiB": 1 << 30, "1024MiB": 1 << 30} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	sweep := sweepSizes()
	for _, want := range []int64{1, 2, 3, 8, 12, 3000, 8191, 8192, 8193, 65535, 65536, 65537, 4 << 20} {
		if !slices.Contains(sweep, want) {
			t.Errorf("the sweep lacks %d", want)
		}
	}
	if !slices.IsSorted(sweep) || sweep[len(sweep)-1] != 4<<20 {
		t.Errorf("the sweep is %v", sweep)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	for _, args := range [][]string{{}, {"local"}, {"run"}, {"compare"}, {"serve"}, {"run", "fail_detect"}, {"run", falseTest}, {"run", "idle"}} {
		code, out, _ := runBench(t, append(args, "--help")...)
		if code != exitOK || !strings.Contains(out, "Examples:") || !strings.Contains(out, "fabric-bench "+strings.Join(args, " ")) {
			t.Errorf("%v --help: exit code %d, %s", args, code, out)
		}
	}
	if code, out, _ := runBench(t, "list"); code != exitOK || !strings.Contains(out, "rma_write_bw") || !strings.Contains(out, "fail_detect") {
		t.Errorf("list: exit code %d, %s", code, out)
	}
}

func TestInterruptionEndsTheRunAndLeavesNothing(t *testing.T) {
	temporaries(t)
	// Interrupted while it starts, or in the middle of a repetition of an hour.
	for _, after := range []time.Duration{time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		var out, errs bytes.Buffer
		code := execute(ctx, []string{"local", "msg_lat", "--size", "64", "--duration", "1h", "--warmup", "2"}, &out, &errs)
		cancel()
		if code != exitFail {
			t.Errorf("after %v: exit code %d, want %d: %s", after, code, exitFail, &errs)
		}
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestProfileIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpu.out")
	document(t, "run", "msg_lat", "--provider", "mem", "--size", "8", "--iters", "100", "--reps", "1", "--cpuprofile", path)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Errorf("the profile: %v, %v", info, err)
	}
	code, _, errs := runBench(t, "run", "msg_lat", "--provider", "mem", "--cpuprofile", filepath.Join(path, "x"))
	if code != exitFail || !strings.Contains(errs, "not a directory") {
		t.Errorf("a profile that cannot be written: exit code %d, %s", code, errs)
	}
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
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile does: nothing is compiled twice
		if out, err := build.CombinedOutput(); err != nil {
			fabricd.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if fabricd.err != nil {
		t.Fatal(fabricd.err)
	}
	return fabricd.exe
}

func TestLossesAreSeenOnceEverywhere(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "fail_detect", "--fabricd", buildFabricd(t), "--nodes", "3", "--kills", "3", "--stops", "1")
	carriedAll(t, d, "quic")
	if len(d.Losses) != 4 || !d.Complete || len(d.Results) != 4 || len(d.Checks) != 6 {
		t.Fatalf("%d losses, complete %v, %d rows, %d checks; want 4, true, 4, 6", len(d.Losses), d.Complete, len(d.Results), len(d.Checks))
	}
	first, stopped := d.Losses[0].Life, d.Losses[3].Life // the age of each cluster decides
	if first == 0 || stopped == 0 {
		t.Errorf("generations %d and %d, want none of 0", first, stopped)
	}
	for i, want := range []struct {
		how  string
		node uint16
		life uint16
	}{{"kill -9", 1, first}, {"kill -9", 2, first}, {"kill -9", 1, first + 1}, {"SIGSTOP", 1, stopped}} {
		l := d.Losses[i]
		if l.How != want.how || l.Node != want.node || l.Life != want.life || len(l.Removed) != 2 || len(l.Returned) != 2 {
			t.Errorf("loss %d is %+v, want %+v at 2 survivors", i, l, want)
		}
	}
	if r := d.Results[0]; r.Test != eventTest || r.Iters != 6 || r.Reps != 3 || !r.LatP99.measured() {
		t.Errorf("the first row is %+v", r.Row)
	}
}

// answerAt serves at daemon d, which has the ID 0, until stop; served receives how
// that has ended.
func answerAt(t *testing.T, d *daemon) (stop func(), served <-chan int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	answering, ended := make(chan string, 1), make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"serve", "--socket", d.socket()}, &bytes.Buffer{},
			writerFunc(func(p []byte) { answering <- string(p) }))
	}()
	if line := <-answering; !strings.Contains(line, "0:2060") {
		t.Fatalf("serve says %q, want it to answer at 0:2060", line)
	}
	return stop, ended
}

// Rows say what the link to a peer is over, and unknown if nobody tells.
func TestRowsAgainstAPeerSayWhatCarriesThem(t *testing.T) {
	temporaries(t)
	runtime.LockOSThread() // see fleet
	defer runtime.UnlockOSThread()
	f, err := newFleet(t.Context(), buildFabricd(t), 2, "--detection", "fast", "--providers", "tcp", "--tcp-plaintext")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	stop, served := answerAt(t, f.daemons[0])
	for _, tt := range []struct {
		name, socket, admin, provider, security string
		noted                                   bool
	}{
		{"without TLS", f.daemons[1].socket(), f.daemons[1].admin(), providerTCPPlain, "none", false},
		{"nobody tells", f.daemons[1].socket(), filepath.Join(scratch, "none.sock"), unknownCarrier, unknownCarrier, true},
		{"one node", f.daemons[0].socket(), filepath.Join(scratch, "none.sock"), providerAttach, "none", false},
	} {
		d := document(t, "run", "msg_lat", "--socket", tt.socket, "--admin", tt.admin, "--peer", "0", "--size", "64", "--iters", "10", "--reps", "1")
		if r := d.Results[0]; r.Provider != tt.provider || r.Security != tt.security {
			t.Errorf("%s: %s with %s, want %s with %s", tt.name, r.Provider, r.Security, tt.provider, tt.security)
		}
		if noted := strings.Contains(strings.Join(d.Notes, "\n"), "--admin names it"); noted != tt.noted {
			t.Errorf("%s: the notes are %q", tt.name, d.Notes)
		}
	}
	stop()
	if code := <-served; code != exitOK {
		t.Errorf("serve ended with %d", code)
	}
}

func TestAttachedNodesAreMeasuredAgainstAPeer(t *testing.T) {
	temporaries(t)
	runtime.LockOSThread() // see fleet
	defer runtime.UnlockOSThread()
	f, err := newFleet(t.Context(), buildFabricd(t), 2, "--detection", "fast")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	stop, served := answerAt(t, f.daemons[0])
	d := document(t, "run", "msg_lat", "rma_write_bw", "rma_read_lat", "conn_setup", "--socket", f.daemons[1].socket(), "--peer", "0",
		"--admin", f.daemons[1].admin(), "--size", "64,70000", "--iters", "30", "--reps", "2", "--validate")
	carriedAll(t, d, "quic")
	if len(d.Results) != 7 || len(d.Ratios) != 0 {
		t.Errorf("%d rows, %d ratios; want 7 and 0", len(d.Results), len(d.Ratios))
	}
	for _, r := range d.Results {
		if r.Errors != 0 {
			t.Errorf("%s: %d errors", r.Test, r.Errors)
		}
	}
	stop()
	if code := <-served; code != exitOK {
		t.Errorf("serve ended with %d", code)
	}
	if code, _, errs := runBench(t, "run", "msg_lat", "--socket", f.daemons[1].socket(), "--peer", "0", "--iters", "1"); code != exitFail || !strings.Contains(errs, "refused") {
		t.Errorf("without a peer: exit code %d, %s", code, errs)
	}
}

func TestIdleDaemonsAreMeasured(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "idle", "--fabricd", buildFabricd(t), "--nodes", "2", "--settle", "0s", "--duration", "1s", "--reps", "2")
	if len(d.Idle) != 2 || len(d.Idle[1].CPUs) != 2 || len(d.Idle[1].RSSs) != 2 || d.Idle[0].Name != "host" || d.Idle[0].RSS < 1 || len(d.Checks) != 2 {
		t.Errorf("idle %+v, checks %+v", d.Idle, d.Checks)
	}
}

func TestStatIsReadBehindTheName(t *testing.T) {
	const text = "42 (a ) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 100 200 300\n"
	if got, err := parseStat(text); err != nil || got != 2*time.Second {
		t.Errorf("got %v, %v; want 2s", got, err)
	}
	for _, bad := range []string{"", "42 (x) S 1 2", strings.Replace(text, "150", "x", 1)} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q: %v without an error", bad, got)
		}
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

// TestUnexpectedEventsFail feeds an observer what must not happen.
func TestUnexpectedEventsFail(t *testing.T) {
	life := fabric.Life{Node: 3, Generation: 2}
	event := func(kind fabric.EventKind, node fabric.NodeID, gen fabric.Generation) stamped {
		return stamped{fabric.Event{Kind: kind, Node: node, Generation: gen}, time.Now()}
	}
	next := func(events ...stamped) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		p := &post{events: make(chan stamped, 4)}
		for _, ev := range events {
			p.events <- ev
		}
		return p.next(ctx, fabric.NodeRemoved, life, func(stamped) {})
	}
	if err := next(event(fabric.NodeRemoved, 3, 2)); err != nil {
		t.Errorf("the event that must come: %v", err)
	}
	for name, events := range map[string][]stamped{
		"missing":          nil,
		"other node":       {event(fabric.NodeRemoved, 4, 2)},
		"other generation": {event(fabric.NodeRemoved, 3, 1)},
		"other kind":       {event(fabric.NodeAdded, 3, 2)},
	} {
		if err := next(events...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	g := &trial{posts: []*post{{events: make(chan stamped, 1)}}}
	if err := g.quiet(t.Context(), time.Millisecond); err != nil {
		t.Errorf("silence: %v", err)
	}
	g.posts[0].events <- event(fabric.NodeRemoved, 3, 2)
	if err := g.quiet(t.Context(), time.Millisecond); err == nil {
		t.Error("an event twice: no error")
	}
}
