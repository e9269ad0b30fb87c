package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestLossesAreHeldToTheirTargets writes a suite of losses that meet their targets,
// and that just do not, and reads the table from its JSON and from its page.
func TestLossesAreHeldToTheirTargets(t *testing.T) {
	entry := func(name string, d scenario.Detection, lab scenario.Lab, p99, most int64) Entry {
		e := Entry{Scenario: name, Lab: lab, Detection: d, Nodes: 5, Runs: 1, Green: 1, Figures: []check.Figure{
			{Name: scenario.TimeToError, Of: "node", Count: 3, Min: ms, P50: ms, P99: 2 * ms, Max: 3 * ms},
			{Name: scenario.TimeToRemoved}, // of a run in which no node was notified
		}}
		if most > 0 {
			e.Figures = append(e.Figures, check.Figure{Name: scenario.TimeToRemoved, Of: "node", Count: 4, Min: ms, P50: 2 * ms, P99: p99, Max: most})
		}
		return e
	}
	s := &Suite{Rows: []Entry{
		entry("host-lost", scenario.Normal, scenario.Sim, 2*ms, 1000*ms),
		entry("node-killed", scenario.Normal, scenario.Netns, 250*ms, 1001*ms),
		entry("node-killed", scenario.Normal, scenario.Sim, 250*ms, 1000*ms),
		entry("node-killed-fast", scenario.Fast, scenario.Sim, 251*ms, 252*ms),
		entry("node-paused-long-fast", scenario.Fast, scenario.Compose, 2000*ms, 2001*ms),
		entry("node-paused-long", scenario.Normal, scenario.Netns, 3000*ms, 3000*ms),
		entry("split-healed", scenario.Normal, scenario.Sim, 0, 0),
		entry("loss", scenario.Normal, scenario.Sim, ms, ms),
	}}
	dir := t.TempDir()
	if err := WriteSuite(dir, "suite", s); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "suite.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read struct{ Losses []Loss }
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range read.Losses {
		got = append(got, fmt.Sprintf("%s, %s, %s: %d and %d, %s: %s", l.Fault, l.Detection, l.Lab, l.Error.Count, l.Removed.Count, l.Target, l.Met))
	}
	want := []string{
		"kill −9, fast, sim: 3 and 4, p99 250ms, max 1s: missed",
		"kill −9, normal, sim: 3 and 4, p99 250ms, max 1s: met",
		"kill −9, normal, netns: 3 and 4, p99 250ms, max 1s: missed",
		"SIGSTOP, normal, netns: 3 and 4, max 3s: met",
		"container pause, fast, compose: 3 and 4, max 2s: missed",
		"symmetric partition, normal, sim: 3 and 0, max 3s: no sample",
		"host killed, normal, sim: 3 and 4, p99 250ms, max 1s: met",
	}
	if !slices.Equal(got, want) {
		t.Errorf("losses:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	page, err := os.ReadFile(filepath.Join(dir, "suite.html"))
	if err != nil {
		t.Fatal(err)
	}
	checkPage(t, "losses", page)
	row := `<tr><td>container pause</td><td>fast</td><td>compose</td><td class="n">5</td>` +
		`<td class="n">3</td><td class="n">1ms</td><td class="n">2ms</td><td class="n">3ms</td>` +
		`<td class="n">4</td><td class="n">2ms</td><td class="n">2s</td><td class="n">2.001s</td>` +
		`<td>max 2s</td><td><span class="v bad">✗ missed</span></td></tr>`
	if !bytes.Contains(page, []byte(row)) {
		t.Errorf("the page has no row %s", row)
	}
}

// TestLossesAreOfTheScenarios holds the table of faults to the scenarios: each is there in both
// profiles, breaks once the fault of its row, and records both times.
func TestLossesAreOfTheScenarios(t *testing.T) {
	breaks := map[string]string{
		"kill −9": "node kill, back", "SIGSTOP": "node stop, back", "network disconnect": "network disconnect, back",
		"symmetric partition": "partition, back", "asymmetric partition": "partition asymmetric, back",
		"host killed": "node kill, host", "host restarted": "node kill, host, back",
	}
	for _, f := range lostBys {
		for file, d := range map[string]scenario.Detection{f.scenario: scenario.Normal, filepath.Join("fast", f.scenario+"-fast"): scenario.Fast} {
			path := filepath.Join("..", "..", "..", "deploy", "scenarios", file+".yaml")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s, err := scenario.Decode(path, text)
			if err != nil {
				t.Fatal(err)
			}
			if s.Cluster.Detection != d {
				t.Errorf("%s: profile %s, want %s", file, s.Cluster.Detection, d)
			}
			if !slices.Contains(s.Figures, scenario.TimeToError) || !slices.Contains(s.Figures, scenario.TimeToRemoved) {
				t.Errorf("%s: figures %v: want time_to_error and time_to_removed", file, s.Figures)
			}
			if got := breaking(s.Resolve(1).Actions); got != breaks[f.fault] {
				t.Errorf("%s: is it %s? it does: %s", file, f.fault, got)
			}
		}
	}
}

// breaking names the actions of a run.
func breaking(all []scenario.Action) string {
	var words []string
	for _, a := range all {
		what := a.What()
		if a.Node != nil && slices.Equal(a.Node.ID.IDs(), []int{0}) {
			what += ", host"
		}
		if a.Until > 0 {
			what += ", back"
		}
		words = append(words, what)
	}
	return strings.Join(words, "; ")
}
