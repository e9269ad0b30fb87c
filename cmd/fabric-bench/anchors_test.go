package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestTargetsAreJudged(t *testing.T) {
	zero, one, most := figure(0), figure(1), figure(1.2)
	spread := func(v ...figure) Spread { return spreadOf(v) }
	for _, tt := range []struct {
		name string
		t    Target
		want string
		says string
	}{
		{"below", Target{Anchor: "a", Ratio: spread(1, 1.1, 1.4), AtMost: &most}, targetReached, "reached"},
		{"above", Target{Anchor: "a", Ratio: spread(1, 1.8, 2), AtMost: &most}, targetMissed, "1.50× the target"},
		{"enough", Target{Anchor: "a", Ratio: spread(.9, 1, 2), AtLeast: &one}, targetReached, "reached"},
		{"too little", Target{Anchor: "a", Ratio: spread(.4, .5, .6), AtLeast: &one}, targetMissed, "0.50× the target"},
		{"a bound", Target{Ours: spread(0.5), AtMost: &one}, targetReached, "reached"},
		{"over a bound", Target{Ours: spread(3), AtMost: &one}, targetMissed, "3.00× the target"},
		{"no target", Target{Anchor: "a", Ratio: spread(3), Raw: spread()}, targetNone, "for comparison"},
		{"no target beside nothing", Target{Anchor: "a", Ours: spread(3), Raw: spread(0), Ratio: spread(3 / zero)}, targetNone, "for comparison"},
		{"no target and no anchor", Target{Anchor: "a", Ours: spread(3), Raw: spread(), Ratio: spread()}, targetUnknown, "not measured"},
		{"no anchor here", Target{Anchor: "a", Ours: spread(3), Ratio: spread(), AtMost: &one, Why: "not installed"}, targetUnknown, "not measured: not installed"},
		{"nothing measured", Target{Anchor: "a", Ratio: spread(), AtMost: &one}, targetUnknown, "not measured"},
	} {
		got := tt.t.judge()
		if got.Verdict != tt.want || !strings.Contains(got.distance(), tt.says) {
			t.Errorf("%s: %s, %q; want %s, %q", tt.name, got.Verdict, got.distance(), tt.want, tt.says)
		}
	}
}

// Ours and the anchors take turns, each first in every other one; who fails is
// not asked again, and the others go on.
func TestContestsAreHeldInTurns(t *testing.T) {
	var order []string
	say := func(name string, v figure, err error) source {
		return source{name: name, most: 1, measure: func(context.Context, *stage) (figure, error) {
			order = append(order, name)
			return v, err
		}}
	}
	c := contest{key: "k", what: "w", unit: "µs", ours: say("ours", 2, nil), anchors: []source{say("a", 4, nil), say("b", 0, errors.New("is away"))}}
	rows, err := c.hold(t.Context(), nil, 3, func(string, ...any) {})
	if err != nil || strings.Join(order, " ") != "ours a b a ours ours a" {
		t.Errorf("%v, %v", order, err)
	}
	if len(rows) != 2 || rows[0].Verdict != targetReached || rows[0].Ratio.Median != 0.5 || len(rows[0].Ratio.PerRep) != 3 {
		t.Errorf("beside a: %+v", rows)
	}
	if rows[1].Verdict != targetUnknown || rows[1].Why != "is away" || rows[1].Ours.Median != 2 {
		t.Errorf("beside b: %+v", rows[1])
	}
}

// uncountedHere says why system calls cannot be counted; "" if they can.
func uncountedHere() string {
	c, err := newCallCounter()
	if err != nil {
		return "system calls are not counted"
	}
	c.close()
	return ""
}

// TestAnchorsFillTheTable measures one row of each kind, without the tools of
// others, which are not on $PATH.
func TestAnchorsFillTheTable(t *testing.T) {
	temporaries(t)
	exe := buildFabricd(t)
	t.Setenv("PATH", t.TempDir())
	code, out, errs := runBench(t, "anchors", "quic-lat", "node-write", "node-atomic", "node-allocs", "node-calls", "node-switches", "tcp-tls", "tcp-mixed", "tcp-mixed-tls", "tcp-allocs", "faults-off", "heal", "false", "idle", "--fabricd", exe,
		"--reps", "2", "--duration", "1ms", "--splits", "0", "--calms", "0", "--idle", "10ms", "--quiet", "--format", "json")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	d, err := readJSON(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ key, anchor, why string }{
		{"node-write", "UCX ucp_put_bw posix", "make bench-anchors"}, {"node-write", "memcpy", ""}, {"node-atomic", "in-process atomic", ""}, {"node-allocs", "", ""}, {"node-allocs", "", ""},
		{"node-allocs", "", ""}, {"node-allocs", "", ""},
		{"node-calls", rawUnix, uncountedHere()}, {"node-switches", rawUnix, ""},
		{"tcp-mixed", "", ""}, {"tcp-allocs", "", ""}, {"tcp-allocs", "", ""}, {"tcp-allocs", "", ""},
		{"tcp-tls", rawTLS, ""}, {"tcp-mixed-tls", "", ""}, {"quic-lat", rawProvider, ""},
		{"faults-off", providerAttachTCP, ""}, {"faults-off", providerAttachTCP, ""}, {"faults-off", providerAttachTCP, ""}, {"faults-off", providerAttachTCP, ""},
		{"faults-off", providerAttachQUIC, ""}, {"faults-off", providerAttachQUIC, ""}, {"faults-off", providerAttachQUIC, ""}, {"faults-off", providerAttachQUIC, ""},
		{"heal", "", "--splits is 0"}, {"heal", "", "--splits is 0"}, {"heal", "", "--splits is 0"}, {"heal", "", "--splits is 0"},
		{"false", "", "--calms is 0"}, {"false", memberlistAlone, "--calms is 0"}, {"idle", "", ""}, {"idle", "", ""},
	}
	if len(d.Targets) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(d.Targets), len(want), d.Targets)
	}
	for i, w := range want {
		got := d.Targets[i]
		if got.Key != w.key || got.Anchor != w.anchor {
			t.Errorf("row %d is %s beside %q, want %s beside %q", i, got.Key, got.Anchor, w.key, w.anchor)
		}
		measured := got.Why == ""
		if measured != (w.why == "") || !strings.Contains(got.Why, w.why) || (got.Verdict == targetUnknown) == measured {
			t.Errorf("row %d, %s: %s because of %q, want %q", i, got.Key, got.Verdict, got.Why, w.why)
		}
		if w.key == keyIdle && len(got.Ours.PerRep) != idleWindows {
			t.Errorf("row %d, %s: %v, want %d windows", i, got.What, got.Ours.PerRep, idleWindows)
		}
	}
}

// What faults-off measures has the layer in place and no rule, and its anchor has
// none.
func TestFaultsOffComparesALayerWithoutRules(t *testing.T) {
	temporaries(t)
	for _, c := range faultContests() {
		if c.ours.name != c.anchors[0].name+"-faults" {
			t.Errorf("%s: %s beside %s", c.what, c.ours.name, c.anchors[0].name)
		}
	}
	for provider, want := range map[string]bool{providerFaultsTCP: true, providerAttachTCP: false} {
		m, err := bed{fabricd: buildFabricd(t)}.mesh(t.Context(), provider, 2)
		if err != nil {
			t.Fatal(err)
		}
		var status struct {
			Enabled   bool     `json:"faults_enabled"`
			Providers []string `json:"providers"`
		}
		var rules struct {
			Faults []any `json:"faults"`
		}
		err = askAdmin(t.Context(), m.meter.http, http.MethodGet, "status", nil, &status)
		if want {
			err = errors.Join(err, askAdmin(t.Context(), m.meter.http, http.MethodGet, "faults", nil, &rules))
		}
		if err != nil || status.Enabled != want || len(rules.Faults) > 0 || !slices.Equal(status.Providers, []string{"tcp"}) {
			t.Errorf("%s: %+v with rules %v, %v; want faults enabled %v", provider, status, rules.Faults, err, want)
		}
		if err := m.close(); err != nil {
			t.Error(err)
		}
	}
}

// The rows of false removals are those of the calms: each that was seen counts
// against the target, and memberlist alone is beside them.
func TestFalseRemovalsAreATarget(t *testing.T) {
	o := &falseOptions{clusterOptions: clusterOptions{nodes: 8}, hogs: 4}
	well, ill := []Calm{{False: 0}, {False: 0}}, []Calm{{False: 0}, {False: 3}, {False: 0}}
	for _, tt := range []struct {
		name              string
		ours, raw         []Calm
		err               error
		bounded, compared string
	}{
		{"none", well, ill, nil, targetReached, targetNone},
		{"three in one of three", ill, well, nil, targetMissed, targetNone},
		{"nothing beside", well, nil, nil, targetReached, targetUnknown},
		{"a failure", nil, nil, errors.New("no fabricd"), targetUnknown, targetUnknown},
	} {
		d := &Document{}
		d.addFalseTargets(o, tt.ours, tt.raw, tt.err)
		if len(d.Targets) != 2 || d.Targets[0].Verdict != tt.bounded || d.Targets[1].Verdict != tt.compared {
			t.Errorf("%s: %+v, want %s and %s", tt.name, d.Targets, tt.bounded, tt.compared)
		}
	}
}

func TestSplitsAreTargetsOfTheirDetection(t *testing.T) {
	all := []Split{{Removed: []figure{1.9e6, 2.5e6}, Healed: 40_000}}
	for detection, want := range map[string]string{"fast": targetMissed, "normal": targetReached} {
		rows := splitTargets(detection, all)
		if got := rows[0].judge(); got.Verdict != want || got.Ours.Median != 2500 || !strings.Contains(got.What, detection) {
			t.Errorf("%s: %+v, want %s", detection, got, want)
		}
		if got := rows[1].judge(); got.Verdict != targetReached || got.Ours.Median != 40 {
			t.Errorf("%s: %+v, want 40 ms", detection, got)
		}
	}
}

// What counts of idle daemons is the busiest of each window, and the median of them.
func TestIdleDaemonsAreJudgedWindowByWindow(t *testing.T) {
	all := []Idle{{CPUs: []figure{.1, .9, .2}, RSSs: []figure{20, 21, 22}}, {CPUs: []figure{.3, .1, .4}, RSSs: []figure{30, 19, 19}}}
	cpu, rss := mostOf(all)
	if cpu.Min != .3 || cpu.Median != .4 || cpu.Max != .9 || rss.Min != 21 || rss.Median != 22 || rss.Max != 30 {
		t.Errorf("%+v, %+v", cpu, rss)
	}
	if checks := idleChecks(all); !checks[0].Reached || checks[0].Value != .4 || checks[1].Value != 22 {
		t.Errorf("%+v", checks)
	}
	if cpu, _ := mostOf(nil); cpu.Median.measured() {
		t.Errorf("of nothing: %+v", cpu)
	}
}
