package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults"
)

// planOf reads a plan for msg_lat.
func planOf(t *testing.T, arg string, seed uint64) (*plan, error) {
	t.Helper()
	picked, err := testsNamed([]string{"msg_lat"})
	if err != nil {
		t.Fatal(err)
	}
	return readPlan(arg, seed, picked)
}

// A plan that delays everything from the beginning delays what is measured, and the
// plane has counted it: every echo is two pieces, of which each waits at least 2 ms.
func TestAPlanBreaksWhatIsMeasured(t *testing.T) {
	for _, provider := range []string{providerMem, providerTCP, providerQUIC} {
		t.Run(provider, func(t *testing.T) {
			temporaries(t)
			const iters = 10
			d := document(t, "run", "msg_lat", "conn_setup", "--provider", provider, "--size", "8,64", "--iters", "10", "--warmup", "0", "--reps", "1",
				"--validate", "--chaos", "delay=2ms;from=0,to=1,cut,at=1h")
			if len(d.Results) != 3 || d.Chaos == nil || len(d.Chaos.Faults) != 6 || d.Chaos.Seed != 1 || !strings.Contains(d.Chaos.Text, "timeline") {
				t.Fatalf("%d results, chaos %+v; want 3, and two faults in each", len(d.Results), d.Chaos)
			}
			for i, r := range d.Results {
				delay, cut := d.Chaos.Faults[2*i], d.Chaos.Faults[2*i+1]
				if delay.Test != r.Test || delay.Size != r.Size || delay.Fired < 2*iters || cut.Fired != 0 || cut.Rule.String() != "all 0→1 cut after 1h0m0s at from" {
					t.Errorf("%s of %d bytes: %+v, %+v; want at least %d delays and no cut", r.Test, r.Size, delay, cut, 2*iters)
				}
				if !strings.HasSuffix(r.Dir, underChaos) || r.Errors != 0 || r.LatMin < 2000 {
					t.Errorf("%s of %d bytes is %q, %d errors, at least %v µs; want at least 2 ms a way", r.Test, r.Size, r.Dir, r.Errors, r.LatMin)
				}
			}
			if !slices.ContainsFunc(d.Notes, func(n string) bool { return strings.Contains(n, "of the 2 faults of the plan 1 did nothing") }) {
				t.Errorf("no note says that the cut did nothing: %q", d.Notes)
			}
		})
	}
}

// Patterns have four nodes, which a plan breaks too.
func TestAPlanBreaksPatterns(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "ring", "--provider", "mem", "--size", "64", "--iters", "20", "--reps", "1", "--chaos", "from=3,to=0,delay=1ms")
	if len(d.Chaos.Faults) != 1 || d.Chaos.Faults[0].Fired == 0 {
		t.Errorf("%+v: want a fault between the last node and the first that has done something", d.Chaos)
	}
}

func TestEveryFormatSaysThatItWasUnderChaos(t *testing.T) {
	temporaries(t)
	for _, format := range []string{"table", "csv", "json", "ucx", "osu", "hdr"} {
		code, out, errs := runBench(t, "run", "msg_lat", "--provider", "mem", "--size", "8", "--iters", "5", "--reps", "1", "--chaos", "delay=1us", "--format", format, "--quiet")
		if code != exitOK || !strings.Contains(strings.ToLower(out), "under chaos") {
			t.Errorf("--format %s: exit code %d, %s\n%s", format, code, errs, out)
		}
		if format == "csv" {
			if rows, err := readCSV(strings.NewReader(out)); err != nil || len(rows) != 1 || rows[0].Dir != "echo"+underChaos {
				t.Errorf("csv: %+v, %v", rows, err)
			}
		}
	}
}

// A seed decides all that is random in a plan: when, for how long, and what befalls
// each packet.
func TestASeedDecidesAPlan(t *testing.T) {
	const text = "drop=5%,at=1s..9s,for=1s..9s;delay=1ms+-200us,every=100ms..200ms,until=3s"
	rules := func(seed uint64) []faults.Rule {
		p, err := planOf(t, text, seed)
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.rules([]fabric.NodeID{0, 5})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	one := rules(7)
	if !reflect.DeepEqual(one, rules(7)) || reflect.DeepEqual(one, rules(8)) {
		t.Error("a seed gives two plans, or two seeds one")
	}
	for _, r := range one {
		if err := r.Check(); err != nil || r.Seed == 0 || r.At != faults.AtFrom || !slices.Equal(r.To, faults.Nodes{0, 5}) {
			t.Errorf("%v: %v, seed %d", r, err, r.Seed)
		}
	}
	first := one[0]
	if first.Delay != faults.Duration(800*time.Microsecond) || first.Jitter != faults.Duration(400*time.Microsecond) {
		t.Errorf("1ms+-200us is %v and a jitter of %v", first.Delay, first.Jitter)
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "plan.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, tt := range []struct{ plan, says string }{
		{"dorp=5%", "--chaos: dorp: \"dorp\": unknown key"},
		{"drop=200%", "want a percentage"},
		{"drop=5%;at=-1s,cut", "fault 2: at: \"-1s\""},
		{"at=25h,cut", "want a duration from 0s to 24h"},
		{"cut,for=0s", "want more than 0s"},
		{"cut,at=2s,until=1s", "from and until belong to every"},
		{"from=0,to=2,cut", "to: \"2\": no such slot: the cluster has 0 to 1"},
		{"from=0,to=0,cut", "is or may be the slot of from"},
		{"at=1s", "does nothing"},
		{"delay=1ms+-2ms", "not longer"},
		{"cut,{at: 1s}", "want keys and values"},
		{"cut,cut", "already defined"},
		{"delay=1ms,every=1ms,until=1s", "1000 faults of links"},
		{"missing.yaml", "no such file"},
		{file(""), "want a mapping"},
		{file("about: nothing\n"), "plan.yaml:1:6: timeline"},
		{file("timeline:\n  - {at: 1s, link: {from: all, to: all, drop: 5%}}\n  - {at: 1s, link: {from: 3, to: 0, cut: true}}\n"), "plan.yaml:3:27: timeline[1].link.from: \"3\": no such slot"},
		{file("timeline:\n  - at: 1s\n    link: {from: all, to: all, dorp: 5%}\n"), "plan.yaml:3:32: timeline[0].link.dorp: \"dorp\": unknown key"},
		{file("timeline:\n  - {at: 1s, link: {from: all, to: all, cut: true, for: -1s}}\n"), "plan.yaml:2:"},
		{file("timeline:\n  - {at: 1s, node: {id: 1, do: kill}}\n"), "plan.yaml:2:20: timeline[0].node: \"node\": cannot be done here"},
		{file("timeline:\n  - {at: 1s, link: {from: 0, to: 1, by: kernel, cut: true}}\n"), "plan.yaml:2:"},
		{file("version: 1\ntimeline: []\n"), "plan.yaml:1:1: version: \"version\": unknown key"},
	} {
		_, err := planOf(t, tt.plan, 1)
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line with %q", tt.plan, err, tt.says)
		}
	}
	for _, tt := range []struct{ args, says string }{
		{"run msg_lat --chaos cut --peer 1:5", "exclude"},
		{"run msg_lat --chaos cut --provider attach", "no links"},
		{"local --chaos cut --provider raw-tcp", "no links"},
		{"run msg_lat --chaos dorp=1 --provider mem", "unknown key"},
	} {
		code, _, errs := runBench(t, strings.Fields(tt.args)...)
		if code != exitUsage || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", tt.args, code, errs, exitUsage, tt.says)
		}
	}
}
