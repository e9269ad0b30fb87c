package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// Every test of `deployed` runs over every carrier, also where there are no
// namespaces.
func TestDeployedMeasuresEveryCarrier(t *testing.T) {
	temporaries(t)
	code, out, errs := runBench(t, "deployed", "--fabricd", buildFabricd(t), "--loopback", "--runs", "2", "--duration", "20ms", "--json")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var d Deployed
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(err)
	}
	if d.Way != "loopback" || !d.TLS || len(d.Rows) != len(deployedTests) {
		t.Errorf("way %q, TLS %v, %d rows", d.Way, d.TLS, len(d.Rows))
	}
	for _, r := range d.Rows {
		for _, carrier := range []string{carryFabric, carryTCP, carryTLS} {
			if len(r.Figures[carrier]) != 2 || len(r.CPU[carrier]) != 2 || !(median(r.Figures[carrier]) > 0) {
				t.Errorf("%s over %s: %v %s, processor time %v", r.Test, carrier, r.Figures[carrier], r.Unit, r.CPU[carrier])
			}
		}
	}
}

func TestDeployedRefusesWhatCannotBe(t *testing.T) {
	for _, args := range [][]string{
		{"--runs", "0"}, {"--duration", "1ms"}, {"--plaintext"}, {"--paths", "eager"}, {"--plaintext", "--providers", "quic"}, {"--fabricd", "/nonexistent", "--loopback"},
	} {
		if code, _, errs := runBench(t, append([]string{"deployed"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, errs)
		}
	}
}

func TestDeployedTargets(t *testing.T) {
	row := DeployedRow{Baseline: carryTLS, Target: 1.15, Figures: map[string][]figure{carryFabric: {20, 11, 12}, carryTLS: {10, 10, 10}}}
	if x := ratio(row.Figures, carryTLS); len(x) != 3 || x[0] != 1.1 || x[2] != 2 {
		t.Errorf("ratios %v", x)
	}
	if row.met() {
		t.Error("a median of 1.2 is at most 1.15")
	}
	row.AtLeast = true
	if !row.met() {
		t.Error("a median of 1.2 is not at least 1.15")
	}
	for kind, want := range map[byte]figure{kindEcho: 500, kindTrip: 1000, kindWrite: 4} {
		o := outcome{Ops: 1000, Bytes: 4e6, Elapsed: time.Second}
		if got := o.figure(kind); got != want {
			t.Errorf("kind %q: %v, want %v", kind, got, want)
		}
	}
}

func TestProcessorTimeOfThisProcess(t *testing.T) {
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); { // use a processor
	}
	after, err := processorTime(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("%v, then %v: %v", before, after, err)
	}
}
