package check

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

const scenarios = "../scenarios"

// compileSchema returns the schema of scenarios as a validator reads it, which
// holds it to JSON Schema's own schema.
func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(filepath.Join(scenarios, "schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if s.DraftVersion != 2020 {
		t.Errorf("it is of the draft %d, want 2020", s.DraftVersion)
	}
	return s
}

// valid applies the schema to YAML, as an editor does.
func valid(s *jsonschema.Schema, text string) error {
	var doc any
	// Of YAML 1.2: in 1.1, which Kubernetes reads, the key `on` is true.
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return err
	}
	return s.Validate(doc)
}

// TestSchemaTakesEveryScenario of the folders and the README.
func TestSchemaTakesEveryScenario(t *testing.T) {
	s := compileSchema(t)
	for folder, least := range map[string]int{".": 50, "fast": 5, "long": 3} {
		files, err := filepath.Glob(filepath.Join(scenarios, folder, "*.yaml"))
		if err != nil || len(files) < least {
			t.Fatalf("%d files in %s, %v; want %d at least", len(files), folder, err, least)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := valid(s, string(text)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(scenarios, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(examples) != 2 {
		t.Errorf("%d examples in the README, want 2", len(examples))
	}
	for i, e := range examples {
		if err := valid(s, e[1]); err != nil {
			t.Errorf("example %d: %v", i+1, err)
		}
	}
}

// right is a scenario that the schema takes; each wrong one differs in one line.
const right = `version: 1
name: test
on: [sim, local]
cluster: {nodes: 4, detection: fast, late: [3]}
select: {victim: {any: 1, not: [0]}}
workload: {pairs: [[0, 1]], messages: {size: 64..4096, rate: 50}}
duration: 10s
timeline: [{at: 1s..2s, link: {from: 0, to: $victim, drop: 5%, for: 1s}}]
expect: [{removed: {node: $victim, within: 1s}}]
figures: [time_to_error]
`

// TestSchemaRefusesWhatIsWrong changes one line of a good scenario at a time.
func TestSchemaRefusesWhatIsWrong(t *testing.T) {
	s := compileSchema(t)
	if err := valid(s, right); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []struct{ name, line string }{
		{"unknown key", "nodes: 4"},
		{"unknown key of the cluster", "cluster: {nodes: 4, size: 5}"},
		{"unknown key of a step", "timeline: [{at: 1s, break: {node: 1}}]"},
		{"unknown key of a link", "timeline: [{at: 1s, link: {from: 0, to: 1, dropp: 5%}}]"},
		{"unknown key of a selection", "select: {victim: {any: 1, but: [0]}}"},
		{"unknown expectation", "expect: [{gone: {node: 1}}]"},
		{"two expectations in one", "expect: [{removed: {node: 1}, mesh: {within: 1s}}]"},
		{"an expectation of nothing", "expect: [{}]"},
		{"unknown lab", "on: [sim, cloud]"},
		{"labs that are no list", "on: sim"},
		{"no labs", "on:"},
		{"another version", "version: 2"},
		{"a version in words", "version: one"},
		{"a name that begins with a dash", "name: -test"},
		{"a name in a list", "name: [test]"},
		{"no nodes", "cluster: {detection: fast}"},
		{"nodes as text", "cluster: {nodes: four}"},
		{"too many nodes", "cluster: {nodes: 1025}"},
		{"half a node", "cluster: {nodes: 2.5}"},
		{"unknown profile", "cluster: {nodes: 4, detection: slow}"},
		{"a cluster that is a list", "cluster: [4]"},
		{"no end of a link", "timeline: [{at: 1s, link: {from: 0, drop: 5%}}]"},
		{"a share without its sign", "timeline: [{at: 1s, link: {from: 0, to: 1, drop: half}}]"},
		{"a cut in words", "timeline: [{at: 1s, link: {from: 0, to: 1, cut: sure}}]"},
		{"unknown plane", "timeline: [{at: 1s, link: {from: 0, to: 1, plane: data, cut: true}}]"},
		{"one group", "timeline: [{at: 1s, partition: {groups: [[0, 1]]}}]"},
		{"unknown way", "timeline: [{at: 1s, partition: {groups: [[0], [1]], way: sideways}}]"},
		{"unknown action", "timeline: [{at: 1s, node: {id: 1, do: explode}}]"},
		{"a node that is negative", "timeline: [{at: 1s, node: {id: -1, do: kill}}]"},
		{"a node that is no name", "timeline: [{at: 1s, node: {id: -victim, do: kill}}]"},
		{"no time at all", "timeline: [{at: soon, node: {id: 1, do: kill}}]"},
		{"a timeline that is a mapping", "timeline: {at: 1s, node: {id: 1, do: kill}}"},
		{"a duration in words", "duration: long"},
		{"unknown pairs", "workload: {pairs: tree}"},
		{"a pair of three", "workload: {pairs: [[0, 1, 2]]}"},
		{"messages without a rate", "workload: {pairs: mesh, messages: {size: 64}}"},
		{"unknown figure", "figures: [time_to_market]"},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			key, _, _ := strings.Cut(wrong.line, ":")
			line := regexp.MustCompile("(?m)^" + key + ":.*$")
			text := right + wrong.line + "\n"
			if line.MatchString(right) {
				text = line.ReplaceAllLiteralString(right, wrong.line)
			}
			refused(t, s, text)
		})
	}
	for _, needed := range []string{"version", "name", "on", "cluster", "duration"} {
		t.Run("without "+needed, func(t *testing.T) {
			refused(t, s, regexp.MustCompile("(?m)^"+needed+":.*\n").ReplaceAllLiteralString(right, ""))
		})
	}
}

// refused expects that the schema, and not the parser, says no.
func refused(t *testing.T, s *jsonschema.Schema, text string) {
	t.Helper()
	err := valid(s, text)
	if _, ok := errors.AsType[*jsonschema.ValidationError](err); !ok {
		t.Errorf("%v, want a refusal of\n%s", err, text)
	}
}
