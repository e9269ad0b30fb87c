package scenario_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

var update = flag.Bool("update", false, "write the schema and the generated parts of the README")

const scenarios = "../../../deploy/scenarios"

// files returns the scenarios of this repository by their paths below the
// folder of scenarios.
func files(t *testing.T) map[string]*scenario.Scenario {
	t.Helper()
	all := map[string]*scenario.Scenario{}
	for _, pattern := range []string{"*.yaml", "fast/*.yaml", "long/*.yaml"} {
		names, err := filepath.Glob(filepath.Join(scenarios, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			short, _ := filepath.Rel(scenarios, name)
			s, err := scenario.Decode(short, text)
			if err != nil {
				t.Error(err)
				continue
			}
			all[short] = s
		}
	}
	if len(all) < 50 {
		t.Fatalf("found %d scenarios", len(all))
	}
	return all
}

// TestEveryScenarioOfTheRepository decodes each file and resolves it for 100
// seeds.
func TestEveryScenarioOfTheRepository(t *testing.T) {
	for name, s := range files(t) {
		if want := strings.TrimSuffix(filepath.Base(name), ".yaml"); string(s.Name) != want {
			t.Errorf("%s: its name is %s", name, s.Name)
		}
		if s.About == "" || len(s.Rows) == 0 || len(s.Expect) == 0 || len(s.Figures) == 0 {
			t.Errorf("%s: want about, rows, expect and figures", name)
		}
		for seed := range uint64(100) {
			drawn := s.Resolve(seed)
			checkSchedule(t, drawn)
			if seed > 0 {
				continue
			}
			if fixed := drawn.Fixed(nil); len(fixed.Timeline) <= scenario.MaxSteps {
				if _, err := scenario.Decode(name, scenario.Encode(fixed)); err != nil {
					t.Errorf("%s: with nothing random left: %v", name, err)
				}
			}
		}
	}
}

func TestSchemaFileIsThatOfTheCode(t *testing.T) {
	file := filepath.Join(scenarios, "schema.json")
	if *update {
		if err := os.WriteFile(file, scenario.Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, scenario.Schema()) {
		t.Errorf("%s is not what the code says (go test ./internal/lab/scenario -update)", file)
	}
}

// TestExamplesOfTheReadme decodes every block of YAML in the README.
func TestExamplesOfTheReadme(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme(t), -1)
	if len(blocks) < 2 {
		t.Fatalf("found %d examples", len(blocks))
	}
	for i, b := range blocks {
		if _, err := scenario.Decode(fmt.Sprintf("example %d", i+1), b[1]); err != nil {
			t.Error(err)
		}
	}
}

func readme(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(scenarios, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestReadmeHasTheReference holds the generated parts of the README to the code
// and the files.
func TestReadmeHasTheReference(t *testing.T) {
	text := string(readme(t))
	for name, want := range map[string]string{
		"keys": scenario.Reference(), "rows": rowTable(t), "criteria": criteria.write(t), "known-issues": issues.write(t), "containers": containerTable(t),
	} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		i, j := strings.Index(text, begin), strings.Index(text, end)
		if i < 0 || j < i {
			t.Fatalf("the README has no part %q", name)
		}
		got := text[i+len(begin) : j]
		if *update {
			text = text[:i+len(begin)] + want + text[j:]
		} else if got != want {
			t.Errorf("the part %q of the README is not what the code says (go test ./internal/lab/scenario -update)", name)
		}
	}
	if *update {
		if err := os.WriteFile(filepath.Join(scenarios, "README.md"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// inTests are tests that show rows of the failure model, most of them such that no
// scenario can show.
var inTests = map[scenario.Name][]string{
	"F7":  {"internal/test/e2e TestKilledApplicationsLeaveNothingBehind"},
	"F8":  {"internal/test/e2e TestStoppedReceiverBlocksOnlyItsOwnConnection"},
	"F26": {"membership TestManyRotationsUnderTraffic", "internal/test/hostile TestCertificatesOfStrangers"},
	"F27": {"membership TestGossipKeysRotateUnderTraffic"},
	"F29": {"membership/state TestEveryDamageToTheLeaseTableIsNoticed", "membership/state TestEveryDamageToANodeIsNoticed", "internal/test/e2e TestDamagedStateNeverLeadsToAnOlderIncarnation"},
	"F30": {"internal/test/e2e TestDescriptorsRunOut"},
	"F31": {"internal/test/deploytest TestCompose", "internal/test/hostile TestQuotas", "internal/shm TestMemoryThatIsMissingIsAnError"},
	"F37": {"internal/lab/sim TestFenceCuts SIM_SEEDS=50"},
	"F40": {"internal/test/hostile TestStrangersOnEveryPort", "internal/test/hostile TestManyPacketsOfStrangersLeaveNothing", "internal/test/hostile TestRandomBytesInsideALink", "internal/test/hostile TestFramesThatBreakTheRules", "internal/test/hostile TestDecodersStayInTheirBudget"},
	"F42": {"internal/test/e2e TestBuildsOfTwoVersions", "internal/core TestChooseVersionTakesTheHighestInBoth", "internal/core TestAnswersNameTheVersionOfBoth", "membership/control TestVersionsAreNamedByBothSides", "internal/attach/client TestVersionSkewIsRefusedWithBothVersions"},
}

// rows are the rows of the failure model.
func rows() (all []scenario.Name) {
	for n := 1; n <= 42; n++ {
		all = append(all, ids("F", n)...)
	}
	return all
}

// rowTable is the table of the failure model: each row, and its scenarios.
func rowTable(t *testing.T) string {
	by := scenariosOf(t)
	var b strings.Builder
	b.WriteString("| row | shown by |\n|---|---|\n")
	for _, row := range rows() {
		fmt.Fprintf(&b, "| %s | %s |\n", row, shownBy(t, row, by[row], inTests[row]))
	}
	return b.String()
}

// scenariosOf returns links to the scenarios that name each row.
func scenariosOf(t *testing.T) map[scenario.Name][]string {
	all := files(t)
	by := map[scenario.Name][]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, r := range all[name].Rows {
			by[r] = append(by[r], fmt.Sprintf("[%s](%s)", strings.TrimSuffix(filepath.Base(name), ".yaml"), name))
		}
	}
	return by
}
