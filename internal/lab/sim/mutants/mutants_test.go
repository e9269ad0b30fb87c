package mutants_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/sim/mutants"
)

// root is the root of the module.
var root = filepath.Join("..", "..", "..", "..")

func TestNoMutantIsStale(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range mutants.All {
		if seen[m.Name] || m.What == "" || m.By == "" {
			t.Errorf("mutant %q: twice, or without a word", m.Name)
		}
		seen[m.Name] = true
		text, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := m.Apply(string(text)); err != nil {
			t.Error(err)
		}
		if m.Run != "" && !hasTest(t, m) {
			t.Errorf("mutant %s: no test of %s is called %s", m.Name, m.By, m.Run)
		}
	}
}

// hasTest reports whether there is a test that a mutant's Run names.
func hasTest(t *testing.T, m mutants.Mutant) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, m.By, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, test := regexp.MustCompile(m.Run), regexp.MustCompile(`(?m)^func (Test\w*)\(`)
	return slices.ContainsFunc(files, func(name string) bool {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(test.FindAllStringSubmatch(string(text), -1), func(m []string) bool { return wanted.MatchString(m[1]) })
	})
}

// TestEveryMutantIsCaught runs what has to catch each mutant: those that MUTANTS
// names, "all", or, if it is not set, one that costs little.
func TestEveryMutantIsCaught(t *testing.T) {
	which := os.Getenv("MUTANTS")
	if which == "" {
		which = "port-taken-twice"
	}
	var table strings.Builder
	for _, m := range mutants.All {
		if which != "all" && !slices.Contains(strings.Split(which, ","), m.Name) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			began := time.Now()
			by, caught := try(t, m)
			if !caught {
				t.Errorf("%s (%s) survived %s", m.Name, m.What, m.By)
				return
			}
			t.Logf("%-26s %-58s %s [%v]", m.Name, m.What, by, time.Since(began).Round(time.Second))
			where := "tests of `" + strings.TrimPrefix(m.By, "./") + "`"
			if m.By == mutants.Simulation {
				where = "simulation"
			}
			fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", m.Name, m.What, where, short(by))
		})
	}
	if *update && which == "all" && !t.Failed() {
		text := fmt.Sprintf(listHead, len(mutants.All)) + table.String()
		if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// short is what a table says of a line that reason has returned.
func short(by string) string {
	if name, ok := strings.CutPrefix(by, "--- FAIL: "); ok {
		by, _, _ = strings.Cut(name, " (")
	}
	by = strings.ReplaceAll(strings.TrimPrefix(by, "found by "), "|", "/")
	if len(by) > 120 {
		by = strings.ToValidUTF8(by[:120], "") + "…"
	}
	return by
}

var update = flag.Bool("update", false, "with MUTANTS=all: write the list of what has caught them")

// list says what catches each mutant.
var list = filepath.Join(root, "deploy", "scenarios", "MUTANTS.md")

const listHead = `# What catches which bug

%d bugs are put into the engine on purpose, one at a time, and each is caught: by the
checker, in the first simulated run that breaks one of its invariants, or by the tests
of the package that it is in, which "make test" runs. "make mutants" does it all again;
with ARGS=-update it writes this page.

The simulation runs the packages that decide as they are, and has an engine, providers,
a membership agent and disks of its own, in which time and the network are virtual. So
what is wrong in "internal/engine", in "internal/transport" or in the agent of
"membership" is not in it: no run of it can go wrong by that, and the tests of these
packages, over real providers and files, have to find it. Two bugs of its own shell,
"reported-before-failed" and "tail-not-sent", stand for their like there. Nor does it have
peers that lie, or applications that ask for every order of events: tests do that too.

| bug | what it does | caught by | how |
|---|---|---|---|
`

// TestMutantsAreListed: the page has each of them, and no others.
func TestMutantsAreListed(t *testing.T) {
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var listed, all []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); len(cells) == 4 && cells[0] != "| bug" {
			listed = append(listed, strings.TrimPrefix(cells[0], "| "))
		}
	}
	for _, m := range mutants.All {
		all = append(all, m.Name)
	}
	if !slices.Equal(listed, all) {
		t.Errorf("listed are %v, want %v (make mutants ARGS=-update)", listed, all)
	}
}

// try runs the tests that have to catch m, and returns what did.
func try(t *testing.T, m mutants.Mutant) (by string, caught bool) {
	dir := t.TempDir()
	path, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken, err := m.Apply(string(text))
	if err != nil {
		t.Fatal(err)
	}
	mutant, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{mutant: []byte(broken), overlay: replace} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"test", "-trimpath", "-overlay", overlay, "-count=1", "-failfast", "-timeout", "10m"}
	switch {
	case m.Run != "":
		args = append(args, "-run", m.Run)
	case m.By == mutants.Simulation:
		args = append(args, "-run", "^TestHunt$")
	}
	cmd := exec.Command("go", append(args, m.By)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "SIM_HUNT=1", "SIM_ONLY="+m.Hint)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", false
	case !errors.As(err, &exit), strings.Contains(string(out), "[build failed]"), strings.Contains(string(out), "[setup failed]"):
		t.Fatalf("%v\n%s", err, out)
	case m.By == mutants.Simulation && strings.Contains(string(out), "panic: test timed out"):
		return "", false // nothing was wrong so far
	}
	return reason(string(out)), true
}

// reason returns the line of a test's output that says what was found.
func reason(out string) string {
	for _, mark := range []string{"found by ", "panic: ", "--- FAIL: ", "FAIL"} {
		for line := range strings.Lines(out) {
			if i := strings.Index(line, mark); i >= 0 {
				return strings.TrimSpace(line[i:])
			}
		}
	}
	return "the tests fail"
}
