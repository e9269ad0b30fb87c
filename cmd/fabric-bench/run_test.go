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
	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// stored runs the benchmark on loopback, and returns the report that it has stored.
func stored(t *testing.T, args ...string) *Report {
	t.Helper()
	temporaries(t)
	file := filepath.Join(t.TempDir(), "report.json")
	code, out, errs := runBench(t, append([]string{"run", "--loopback", "--quick", "--fabricd", buildFabricd(t), "--store", file}, args...)...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	if !strings.Contains(out, " targets reached") {
		t.Errorf("the report is\n%s", out)
	}
	d, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Every case between two applications is measured over ours and over each baseline
// that this machine has, also where there are no namespaces.
func TestEveryCarrierIsMeasured(t *testing.T) {
	d := stored(t, "--only", "message,connect,rma,link,quic,node-write-1M")
	if len(d.Rows) < 20 || d.Way != "loopback" {
		t.Errorf("%d rows, way %q", len(d.Rows), d.Way)
	}
	for _, r := range d.Rows {
		for _, s := range r.Sources {
			if s == ucxPosix || s == carryStunnel { // which may not be installed
				continue
			}
			if !median(r.Figures[s]).measured() || r.CPUUnit != "" && !median(r.CPU[s]).measured() {
				t.Errorf("%s over %s: %v %s, processor time %v; %s", r.What, s, r.Figures[s], r.Unit, r.CPU[s], r.Why)
			}
		}
	}
}

func TestManyConnectionsAreMeasured(t *testing.T) {
	d := stored(t, "--only", "conns-1000")
	for _, r := range d.Rows {
		if v := median(r.ours()); !v.measured() || r.Unit == "descriptors" && v < 1 || r.Unit == "KiB" && v <= 0 {
			t.Errorf("%s: %v %s; %s", r.What, v, r.Unit, r.Why)
		}
	}
}

func TestClustersAreMeasured(t *testing.T) {
	d := stored(t, "--only", "loss-kill,idle,false-removals")
	if len(d.Rows) != 6 {
		t.Errorf("%d rows, want 6", len(d.Rows))
	}
	for _, r := range d.Rows {
		if !median(r.ours()).measured() {
			t.Errorf("%s: %v; %s", r.What, r.ours(), r.Why)
		}
	}
}

// A way delays TCP's packets and limits their rate.
func TestAPathIsAsLongAsItIsSet(t *testing.T) {
	temporaries(t)
	file := filepath.Join(t.TempDir(), "report.json")
	code, _, errs := runBench(t, "run", "--quick", "--fabricd", buildFabricd(t), "--only", "rma-write-8", "--way", "20ms/100Mbit", "--store", file)
	if _, err := os.Stat("/dev/net/tun"); err != nil || !canMakeSpaces() {
		if code == exitOK {
			t.Errorf("without namespaces or TUN devices there is a way")
		}
		return
	}
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	d, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	if trip := median(d.Rows[0].Figures[carryTCP]); trip < 20_000 || trip > 60_000 {
		t.Errorf("a round trip takes %v µs over a way of 20 ms", trip)
	}
}

func TestApplicationsOfOthersAreMeasured(t *testing.T) {
	d := stored(t, "--only", "apps-redis-1")
	_, err1 := tools.Find("redis-server")
	_, err2 := tools.Find("redis-benchmark")
	if err := errors.Join(err1, err2); err != nil {
		if len(d.Notes) < 2 || !strings.Contains(d.Rows[0].Why, "make bench-baselines") {
			t.Errorf("without redis: %+v, notes %q", d.Rows[0], d.Notes)
		}
		return
	}
	if r := d.Rows[0]; !median(r.ours()).measured() || !median(r.Figures[carryDirect]).measured() || median(r.CPU[carryDirect]).measured() {
		t.Errorf("%+v", r)
	}
}

func TestFiguresOfAnOutcome(t *testing.T) {
	for kind, want := range map[byte]figure{kindEcho: 500, kindTrip: 1000, kindWrite: 4, kindRate: 1000} {
		o := outcome{Ops: 1000, Bytes: 4e6, Elapsed: time.Second}
		if got := o.figure(kind); got != want {
			t.Errorf("kind %q: %v, want %v", kind, got, want)
		}
	}
}

func TestOutputsAreRead(t *testing.T) {
	for _, tt := range []struct {
		name, text    string
		read          func([]byte, int) (figure, figure, error)
		value, amount figure
	}{
		{"pgbench", "number of transactions actually processed: 1234\nlatency average = 0.1 ms\ntps = 411.5 (without initial connection time)\n", readPgbench, 411.5, 1234},
		{"redis", "\"test\",\"rps\"\n\"GET\",\"12500.00\",\"0.07\"\n", readRedis, 12500, 37500},
		{"wrk", "  9000 requests in 3.00s, 1.2MB read\nRequests/sec:   2999.5\n", readWrk, 2999.5, 9000},
		{"curl", "250000000 1073741824", readCurl, 250, 1 << 30},
	} {
		value, amount, err := tt.read([]byte(tt.text), 3)
		if err != nil || value != tt.value || amount != tt.amount {
			t.Errorf("%s: %v of %v, %v; want %v of %v", tt.name, value, amount, err, tt.value, tt.amount)
		}
		if _, _, err := tt.read([]byte("nothing"), 3); err == nil {
			t.Errorf("%s: nothing is read", tt.name)
		}
	}
	if _, _, err := readWrk([]byte("  9000 requests in 3.00s\n  Socket errors: connect 0, read 1\nRequests/sec: 1\n"), 3); err == nil {
		t.Error("wrk with errors is read")
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

func TestWaysAreRead(t *testing.T) {
	for s, want := range map[string]way{"25ms/1Gbit": {25 * time.Millisecond, 1e9}, "0s/100Mbit": {0, 1e8}, "1.5ms/10Gbit": {1500 * time.Microsecond, 1e10}} {
		if got, err := parseWay(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "25ms", "25ms/1", "25ms/0Gbit", "-1ms/1Gbit", "1h/1Gbit", "25ms/1000Gbit", "x/1Gbit"} {
		if got, err := parseWay(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// A line delays each packet, limits the rate, and drops packets that its queue cannot hold.
func TestLinesDelayAndDrop(t *testing.T) {
	l := newLine(way{20 * time.Millisecond, 8_000_000}) // 1000 bytes in a millisecond
	now := time.Unix(0, 0)
	var passed, dropped int
	for i := range 30 {
		at, ok := l.pass(now, 1000)
		if !ok {
			dropped++
			continue
		}
		passed++
		if want := time.Duration(i+1)*time.Millisecond + 10*time.Millisecond; at.Sub(now) != want {
			t.Errorf("packet %d arrives after %v, want %v", i, at.Sub(now), want)
		}
	}
	if passed != 21 || dropped != 9 {
		t.Errorf("%d pass and %d are dropped, want 21 and 9", passed, dropped)
	}
	if _, ok := l.pass(now.Add(5*time.Millisecond), 1000); !ok {
		t.Error("the queue is still full 5 ms later")
	}
}

// TestUnexpectedEventsFail passes an observer events that must not happen.
func TestUnexpectedEventsFail(t *testing.T) {
	incarnation := fabric.Incarnation{Node: 3, Generation: 2}
	event := func(kind fabric.EventKind, node fabric.NodeID, gen fabric.Generation) stamped {
		return stamped{fabric.Event{Kind: kind, Node: node, Generation: gen}, time.Now()}
	}
	next := func(events ...stamped) error {
		p := &observer{events: make(chan stamped, 4)}
		for _, ev := range events {
			p.events <- ev
		}
		return p.next(expired(t), fabric.NodeRemoved, incarnation, func(stamped) {})
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
	g := &observedFleet{observers: []*observer{{events: make(chan stamped, 2)}}}
	if err := g.quiet(t.Context(), time.Millisecond); err != nil {
		t.Errorf("silence: %v", err)
	}
	g.observers[0].events <- event(fabric.NodeRemoved, 3, 2)
	if err := g.quiet(t.Context(), time.Millisecond); err == nil {
		t.Error("an event too many: no error")
	}
	g.observers[0].events <- event(fabric.NodeRemoved, 3, 2)
	g.observers[0].events <- event(fabric.NodeAdded, 3, 3)
	if n := g.removals(); n != 1 {
		t.Errorf("%d removals, want 1", n)
	}
}

// TestQuickIsQuick: a case that hangs is ended, and cases for which the minute is too short are
// left out and named.
func TestQuickIsQuick(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var cases []benchCase
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			cases = append(cases, benchCase{name: name, setup: setup{none: true}, sources: []string{fabricdAlone}, rows: []rowSpec{{what: name}},
				measure: func(ctx context.Context, _ *bench, _ string) ([]reading, error) {
					if name != "a" {
						wait(ctx, 14*time.Second)
						return alone(1, 1), nil
					}
					<-ctx.Done()
					return nil, ctx.Err()
				}})
		}
		b := &bench{o: &runOptions{quick: true, runs: 1}, report: &Report{}, progress: func(string, ...any) {}}
		began := time.Now()
		err := b.all(t.Context(), cases)
		if took := time.Since(began); took != quickCase+4*14*time.Second {
			t.Errorf("it takes %v", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNoTimeLeft) {
			t.Errorf("the error is %v, want that of the case that hangs", err)
		}
		if len(b.report.Rows) != 6 || len(b.report.Notes) != 1 || !strings.HasPrefix(b.report.Notes[0], "f: left out") {
			t.Errorf("%d rows, notes %q", len(b.report.Rows), b.report.Notes)
		}
	})
}
