package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTargetsPageIsGenerated: TARGETS.md is the command's output for the last run, and there is a
// reason for each missed target, and no other.
func TestTargetsPageIsGenerated(t *testing.T) {
	code, out, errs := runBench(t, "targets", "testdata/last.json")
	if code != exitOK || errs != "" {
		t.Errorf("exit code %d: %s", code, errs)
	}
	page, err := os.ReadFile("TARGETS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != out {
		t.Error("TARGETS.md is not what this writes: go run ./cmd/fabric-bench targets cmd/fabric-bench/testdata/last.json --out cmd/fabric-bench/TARGETS.md")
	}
}

// TestReasonsAreReasons: a reason names the cause, not the figure of another run.
func TestReasonsAreReasons(t *testing.T) {
	other := regexp.MustCompile(`(?i)\bruns? before\b|no cause`)
	var reasons map[string]string
	if err := json.Unmarshal(reasonsJSON, &reasons); err != nil {
		t.Fatal(err)
	}
	for what, reason := range reasons {
		if other.MatchString(reason) || !strings.HasSuffix(reason, ".") {
			t.Errorf("%s: %q: want the cause in a sentence", what, reason)
		}
	}
	if !other.MatchString("The run before had 0.85×.") || !other.MatchString("Runs before had 1.48×.") {
		t.Error("the test accepts the figure of another run as a reason")
	}
}

func TestReasonsAreAskedFor(t *testing.T) {
	const good, bad, gone = "messages 64 KiB, TLS", "messages 1 MiB, TLS", "connects nobody measures"
	up, down := row(good, megabytes, []figure{2}, []figure{1}), row(bad, megabytes, []figure{1}, []figure{2})
	broken := row("RMA fetch-add, beside a round trip", micros, nil, nil)
	broken.Why = "no | luck\nand more"
	d := &Report{Rows: []Row{up, down, broken}}
	for i := range d.Rows {
		d.Rows[i].Target = to(0.95)
	}
	reasons := map[string]string{good: "luck", gone: "rain"}
	hints := strings.Join(d.hints(reasons), "\n")
	for _, want := range []string{`"` + bad + `" is not reached`, `"` + good + `" is not reached, and it is`, gone} {
		if !strings.Contains(hints, want) {
			t.Errorf("no hint %q in\n%s", want, hints)
		}
	}
	if n := strings.Count(hints, "\n"); n != 2 {
		t.Errorf("%d hints, want 3:\n%s", n+1, hints)
	}
	var page bytes.Buffer
	if err := d.writeTargets(&page, map[string]string{bad: "it rains"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# 1 of 3 targets reached, 1 not measured", "| 0.50× | ≥ 0.95× |  | it rains |\n", "| not measured |", `no \| luck |`, "`rma-add`"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no %q in\n%s", want, &page)
		}
	}
	if strings.Contains(page.String(), "luck |\nand more") {
		t.Errorf("a row has two lines:\n%s", &page)
	}
}

func TestQuantitiesAreReadable(t *testing.T) {
	for _, tt := range []struct {
		figures []figure
		unit    string
		want    string
	}{
		{[]figure{15_600_000}, perSecond, "15.6 M/s"}, {[]figure{0.25}, micros, "250 ns"}, {[]figure{2880}, micros, "2.88 ms"}, {[]figure{1362}, megabytes, "1.36 GB/s"},
		{[]figure{900, 1100, 1000}, megabytes, "1.00 GB/s (0.90–1.10)"}, {[]figure{0}, micros, "0 ns"}, {nil, micros, "-"}, {[]figure{0.5}, "% of a core", "0.50 % of a core"},
		{[]figure{2048}, kibibytes, "2.00 MiB"}, {[]figure{0.00001}, perOp, "<0.0001 allocs/op"},
	} {
		if got := quantity(tt.figures, tt.unit); got != tt.want {
			t.Errorf("%v %s: %q, want %q", tt.figures, tt.unit, got, tt.want)
		}
	}
	near := entry{ratios: []figure{0.9497}, goal: to(0.95)}
	if got := near.ratio(); got != "0.9497×" {
		t.Errorf("a ratio that just misses its target is printed as %s", got)
	}
}
