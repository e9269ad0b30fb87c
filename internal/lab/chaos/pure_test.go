package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// decode reads a scenario from text.
func decode(t testing.TB, text string) *scenario.Scenario {
	t.Helper()
	sc, err := scenario.Decode("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

const head = `
version: 1
name: test
on: [sim, local, netns, compose]
cluster: {nodes: 5, detection: fast}
workload: {pairs: mesh, messages: {size: 64, rate: 10}, connects: 1}
duration: 30s
`

func TestNames(t *testing.T) {
	own := ownName(2)
	if got, ok := nameIn(string(own) + "-n3"); !ok || got != own || !own.alive() {
		t.Errorf("own name %s: got %s, %v, alive %v", own, got, ok, own.alive())
	}
	for _, text := range []string{"", "fch-", "fch-1-2", "fch-1-x-0", "fch-1--0-n1", "xfch-1-2-3", "fch-1-2-" + strings.Repeat("9", 30)} {
		if n, ok := nameIn(text); ok {
			t.Errorf("%q is taken for %s", text, n)
		}
	}
	if n, _ := nameIn("fch-1-1-0"); n.alive() {
		t.Error("a process that was started at another time is taken for the run's")
	}
}

func TestTwoRunsAtOnceAreRefused(t *testing.T) {
	dir := t.TempDir()
	l, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = takeLock(dir)
	if !Refused(err) || !strings.Contains(err.Error(), "another run") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the second: %v, want one line that refuses it", err)
	}
	l.release()
	again, err := takeLock(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again.release()
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("runs leave %v, %v", left, err)
	}
}

// TestLockOfARemovedFileIsNone: a run that opened the file before another one removed it
// must not take it for the lock.
func TestLockOfARemovedFileIsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	old, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.file.Close()
	if !old.current() {
		t.Error("the lock of a file that is there is none")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if old.current() {
		t.Error("the lock of a removed file counts")
	}
	other, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.release()
	if old.current() || !other.current() {
		t.Error("the lock of a removed file counts beside the new one")
	}
}

// TestLeftoversOfTheDead makes the leftovers of a run that was killed, and lets the
// next one find them.
func TestLeftoversOfTheDead(t *testing.T) {
	b := cleanup{tmp: t.TempDir()}
	dead, living := Name("fch-4194304-1-0"), ownName(3)
	for _, n := range []Name{dead, living} {
		if err := os.MkdirAll(filepath.Join(b.tmpOf(n), "n0"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var said []string
	err := b.removeDead(t.Context(), func(format string, _ ...any) { said = append(said, format) })
	if err != nil || len(said) == 0 {
		t.Errorf("%v, said %q", err, said)
	}
	left, err := b.leftovers(t.Context())
	if err != nil || slices.Contains(left, dead) || !slices.Contains(left, living) {
		t.Errorf("left: %v, %v; want that of %s only", left, err, living)
	}
	if err := CleanUp("nonsense", false, strings.NewReader("")); !Refused(err) {
		t.Errorf("a cleaner for nobody: %v", err)
	}
}

func TestRulesOfTheFilter(t *testing.T) {
	f := filter{addr: func(node int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(node + 1)}) }}
	for _, test := range []struct{ link, want string }{
		{"cut: true", "counter drop"},
		{"drop: 5%", "numgen random mod 100000 < 5000 counter drop"},
		{"drop: 100%", "counter drop"},
		{"udp_blocked: true", "meta l4proto udp counter drop"},
		{"mtu: 1280", "meta length > 1308 counter drop"},
		{"corrupt: 1%", "meta l4proto udp numgen random mod 100000 < 1000 @th,160,8 set 0xff counter"},
		{"plane: link, cut: true", "udp dport 7700 counter drop"},
	} {
		sc := decode(t, head+"timeline: [{at: 1s, link: {from: [0, 2], to: 1, "+test.link+", for: 1s}}]\n")
		a := sc.Resolve(1).Actions[0]
		got := f.rules(a)
		if want := []string{"ip saddr @s " + test.want}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", test.link, got, want)
		}
		if !byKernel(a.Link) {
			t.Errorf("%s: the kernel can do it", test.link)
		}
	}
	if got, want := f.senders([]int{0, 2}, 1500*time.Millisecond), "set s { type ipv4_addr; flags timeout; elements = { 10.77.0.1 timeout 1500ms, 10.77.0.3 timeout 1500ms }; };"; got != want {
		t.Errorf("senders: %q, want %q", got, want)
	}
	if got, want := f.senders([]int{1}, 0), "set s { type ipv4_addr; elements = { 10.77.0.2 }; };"; got != want {
		t.Errorf("senders without an end: %q, want %q", got, want)
	}
	for _, link := range []string{"delay: 1ms", "reorder: 1%", "hold: true", "half_open: true", "reset: true",
		"plane: rma, cut: true", "cut: true, up: 1s, down: 1s"} {
		sc := decode(t, head+"timeline: [{at: 1s, link: {from: 0, to: 1, "+link+", for: 3s}}]\n")
		if byKernel(sc.Timeline[0].Link) {
			t.Errorf("%s: the kernel cannot do it", link)
		}
	}
}

func TestCountersOfNft(t *testing.T) {
	text := `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "c1"}},
		{"rule": {"expr": [{"match": {"op": "=="}}, {"counter": {"packets": 3, "bytes": 9}}, {"drop": null}]}},
		{"rule": {"expr": [{"counter": {"packets": 4, "bytes": 9}}]}}]}`
	if n, err := countPackets([]byte(text)); n != 7 || err != nil {
		t.Errorf("%d, %v, want 7", n, err)
	}
	if _, err := countPackets([]byte("Error: no such table")); err == nil {
		t.Error("what is no JSON was counted")
	}
}

func TestRulesOfThePlane(t *testing.T) {
	sc := decode(t, head+"timeline: [{at: 1s, partition: {groups: [[0, 1], [2], [3, 4]], way: partial, for: 2s}}]\n")
	var got []string
	for _, r := range rulesOf(sc.Resolve(1).Actions[0]) {
		if !r.rule.Cut || r.rule.At != "from" || r.rule.On != "all" || r.rule.Seed == 0 {
			t.Errorf("rule %+v: want a cut of all at the sender", r.rule)
		}
		got = append(got, fmt.Sprintf("%v→%v", r.from, r.to))
	}
	want := []string{"[0 1]→[2]", "[2]→[0 1]", "[2]→[3 4]", "[3 4]→[2]"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMinimize shortens a schedule that breaks a promise whenever it has two of
// its steps.
func TestMinimize(t *testing.T) {
	sc := decode(t, head+`
timeline:
  - {at: 1s, node: {id: 1, do: kill}}
  - {every: 1s, from: 2s, until: 20s, link: {from: 0, to: 1, drop: 1%, for: 500ms}}
  - {at: 9s, node: {id: 2, do: stop, for: 1s}}
  - {at: 12s, app: {node: 3, do: kill}}
`)
	broken := func(_ context.Context, schedule *scenario.Schedule) *Outcome {
		kill, stop, sc := false, false, schedule.Scenario
		for _, s := range sc.Timeline {
			kill = kill || s.Node != nil && s.Node.Do == scenario.Kill
			stop = stop || s.Node != nil && s.Node.Do == scenario.Stop
		}
		out := &Outcome{Schedule: schedule, Result: &check.Result{Invariants: []check.Judgement{{Name: "events"}, {Name: "prefix"}}}}
		if kill && stop && len(sc.Workload.Pairs.Of(5)) > 0 {
			out.Result.Invariants[1].Count, out.Result.Invariants[1].Verdict = 1, check.Violated
		}
		return out
	}
	short, err := Minimize(t.Context(), sc, 3, broken, nil)
	if err != nil {
		t.Fatal(err)
	}
	if short.Promise != "prefix" || short.After != 2 || short.Before != 21 || short.Runs < 3 {
		t.Errorf("%s: %d of %d steps after %d runs; want prefix, 2 of 21", short.Promise, short.After, short.Before, short.Runs)
	}
	if again, err := scenario.Decode("short.yaml", scenario.Encode(short.Scenario)); err != nil || len(again.Timeline) != 2 {
		t.Errorf("what is left is no scenario: %v", err)
	}
	healthy := func(_ context.Context, schedule *scenario.Schedule) *Outcome {
		return &Outcome{Schedule: schedule, Result: &check.Result{}}
	}
	if _, err := Minimize(t.Context(), sc, 3, healthy, nil); !Refused(err) {
		t.Errorf("nothing is broken: %v, want a refusal", err)
	}
}

func TestPlanAndTallies(t *testing.T) {
	sim := decode(t, strings.Replace(head, "[sim, local, netns, compose]", "[sim]", 1))
	both := decode(t, strings.Replace(head, "name: test", "name: both", 1))
	all := []Named{{"a.yaml", sim}, {"b.yaml", both}}
	jobs := Plan(all, scenario.Sim, 10, 1, 5)
	var seeds []uint64
	for _, j := range jobs {
		seeds = append(seeds, j.Seed)
	}
	if want := []uint64{10, 10, 11, 11, 12, 12}; !slices.Equal(seeds, want) {
		t.Errorf("seeds %v, want %v", seeds, want)
	}
	if jobs := Plan(all, scenario.Local, 1, 2, 0); len(jobs) != 2 || jobs[1].File != "b.yaml" {
		t.Errorf("on local: %d jobs, want the two of b.yaml", len(jobs))
	}
	var tallies Tallies
	for i, err := range []error{nil, errors.New("no network"), nil} {
		out := &Outcome{Schedule: both.Resolve(uint64(i)), Lab: scenario.Local, Err: err, Result: &check.Result{
			Figures: []check.Figure{{Name: scenario.TimeToError, Count: 2, Samples: []int64{int64(i), 10}}}}}
		if i == 2 {
			out.Result.Invariants = []check.Judgement{{Name: "x", Verdict: check.Violated, Count: 1}}
		}
		tallies.Add(out)
	}
	list := tallies.List()
	if len(list) != 1 || list[0].Green != 1 || !slices.Equal(list[0].Harness, []uint64{1}) || !slices.Equal(list[0].Broken, []uint64{2}) {
		t.Fatalf("%+v", list)
	}
	if f := list[0].Figures[0]; f.Count != 6 || f.P50 != 10 || f.Max != 10 {
		t.Errorf("figure %+v, want 6 samples, median and greatest 10", f)
	}
}

// TestWhatRunsAlone asks for each scenario of the suite whether it disturbs others or
// would be disturbed.
func TestWhatRunsAlone(t *testing.T) {
	all, err := ReadScenarios([]string{"../../../deploy/scenarios"})
	if err != nil {
		t.Fatal(err)
	}
	var greedy, weighs []string
	for _, n := range all {
		if j := (Job{Named: n}); j.greedy() {
			greedy = append(greedy, string(n.Scenario.Name))
		} else if j.weighs() {
			weighs = append(weighs, string(n.Scenario.Name))
		}
	}
	if !slices.Equal(greedy, []string{"cpu-busy", "cpu-starved", "node-paused-busy"}) || !slices.Equal(weighs, []string{"loss-goodput", "mtu-black-hole", "path-cut-one-way", "path-cut", "path-mtu-black-hole"}) {
		t.Errorf("of %d, %v disturb others, %v are disturbed", len(all), greedy, weighs)
	}
}

// TestAnOutcomeIsClassified keeps the exit codes apart.
func TestAnOutcomeIsClassified(t *testing.T) {
	held := &check.Result{Invariants: []check.Judgement{{Verdict: check.Held}}}
	broken := &check.Result{Invariants: []check.Judgement{{Verdict: check.Violated, Count: 1}}}
	for _, test := range []struct {
		out  Outcome
		want report.Verdict
	}{
		{Outcome{Result: held}, report.Green},
		{Outcome{Result: broken}, report.Broken},
		{Outcome{Result: broken, Err: errors.New("no network")}, report.Harness},
		{Outcome{}, report.Harness},
	} {
		if got := test.out.Verdict(); got != test.want {
			t.Errorf("%+v is %v, want %v", test.out, got, test.want)
		}
	}
}

// TestSimIsALab runs the simulation as the labs are run.
func TestSimIsALab(t *testing.T) {
	l, err := OpenLab(scenario.Sim)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sc := decode(t, head+"timeline: [{at: 2s, node: {id: 2, do: kill, for: 2s}}]\nexpect: [{removed: {node: 2, times: 1, within: 1s}}, {mesh: {within: 5s}}]\n")
	out := Once(t.Context(), l, sc.Resolve(5), &Options{})
	if out.Verdict() != report.Green {
		t.Errorf("%v: %v", out.Verdict(), out.Problems())
	}
	dir := t.TempDir()
	if err := Save(dir, out); err != nil {
		t.Fatal(err)
	}
	again, err := Recheck(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.Verdict() != report.Green || len(again.Records) != len(out.Records) || again.Schedule.Seed != 5 {
		t.Errorf("judged again: %v, %d of %d records, seed %d", again.Verdict(), len(again.Records), len(out.Records), again.Schedule.Seed)
	}
	if _, err := Recheck(t.TempDir()); !Refused(err) {
		t.Errorf("an empty directory: %v, want a refusal", err)
	}
}

// TestLabsRefuseWhatTheyCannotDo refuses before anything is started.
func TestLabsRefuseWhatTheyCannotDo(t *testing.T) {
	refusal := func(s site, timeline string) string {
		sc := decode(t, strings.Replace(head, "on: [sim, local, netns, compose]", "on: [netns]", 1)+"timeline: ["+timeline+"]\n")
		err := s.check(t.Context(), sc.Resolve(1))
		if err == nil || !Refused(err) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that refuses it", timeline, err)
			return ""
		}
		return err.Error()
	}
	local := newMachine(fabricdExe, ownName(0), nil, 0)
	refusal(local, "{at: 1s, network: {node: 1, do: disconnect, for: 1s}}")
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	absent := newContainers("", ownName(0))
	if said := refusal(absent, "{at: 1s, node: {id: 1, do: kill}}"); !strings.Contains(said, "no Docker engine answers at /nonexistent/docker.sock") {
		t.Errorf("without Docker: %q", said)
	}
	l, err := OpenLab(scenario.Sim)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sc := decode(t, strings.Replace(head, "on: [sim, local, netns, compose]", "on: [local]", 1))
	if _, err := l.Run(t.Context(), sc.Resolve(1), &Options{}); !Refused(err) {
		t.Errorf("a lab that the scenario does not name: %v", err)
	}
	if _, err := OpenLab("moon"); !Refused(err) {
		t.Errorf("no such lab: %v", err)
	}
}

func TestPauseUntilThePast(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if !pauseUntil(ctx, time.Now().Add(-time.Hour)) {
		t.Error("what is past was not reached")
	}
	cancel()
	if pauseUntil(ctx, time.Now().Add(time.Hour)) {
		t.Error("an interrupt was waited through")
	}
	var none []history.Record
	if out := (&Outcome{Records: none}); out.Verdict() != report.Harness {
		t.Error("a run without a history is green")
	}
}

// TestRunsShareNoAddress: of all that are made at a time, and none has that of the
// machine itself.
func TestRunsShareNoAddress(t *testing.T) {
	for _, pid := range []int{1, 255, 256, 63 * 256, 1<<22 - 1} {
		seen := make(map[netip.Addr]int)
		for worker := range MaxParallel {
			a := loopback(pid, worker).As4()
			if a[0] != 127 || a[1] < 64 || a[3] == 0 || int(a[3])+maxNodes > 256 {
				t.Errorf("process %d, run %d: %v", pid, worker, a)
			}
			for range maxNodes {
				if other, taken := seen[netip.AddrFrom4(a)]; taken {
					t.Fatalf("process %d: runs %d and %d have %v", pid, other, worker, a)
				}
				seen[netip.AddrFrom4(a)] = worker
				a[3]++
			}
		}
	}
}
