package conformance

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// tallies are what TestConformance counted.
var tallies []Tally

// TestMain prints the count below what the tests print.
func TestMain(m *testing.M) {
	code := m.Run()
	if tallies != nil {
		PrintRests(os.Stdout)
		fmt.Println()
		if !Print(os.Stdout, tallies) {
			code = max(code, 1)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// TestConformance runs the contract through every door.
func TestConformance(t *testing.T) {
	for _, door := range doors {
		t.Run(door.Name, func(t *testing.T) { tallies = append(tallies, Run(t, door)...) })
	}
}

// TestTableIsWellFormed keeps the table readable and countable.
func TestTableIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	covered := map[string]bool{}
	for _, r := range table() {
		name := r.call + " " + r.name
		if seen[name] {
			t.Errorf("two rows are called %q", name)
		}
		seen[name], covered[r.call] = true, true
		if !slices.Contains(calls, r.call) {
			t.Errorf("row %q is about no call of SCIF", name)
		}
		if _, result, ok := strings.Cut(r.name, "="); !ok || result == "" {
			t.Errorf("row %q names no result", name)
		}
		if r.wait != 0 && !r.alone {
			t.Errorf("row %q wants another timeout in a shared cluster", name)
		}
	}
	for _, r := range rests {
		covered[r.call] = true
		if !slices.Contains(calls, r.call) || r.why == "" {
			t.Errorf("%s, %s: no such call, or no reason", r.call, r.name)
		}
	}
	for _, call := range calls {
		if !covered[call] {
			t.Errorf("%s has neither a row nor a reason", call)
		}
	}
}

func TestPrintCounts(t *testing.T) {
	tally := Tally{Door: "d", Pair: Across, Hold: map[string]int{"open": 1}, Total: map[string]int{"open": 2}}
	var b bytes.Buffer
	if Print(&b, []Tally{tally}) {
		t.Error("a row that does not hold went unnoticed")
	}
	if !strings.Contains(b.String(), "1 of 2 !") {
		t.Errorf("printed %s", b.String())
	}
	tally.Hold["open"] = 2
	if !Print(&b, []Tally{tally}) {
		t.Error("all rows hold, but Print says otherwise")
	}
}
