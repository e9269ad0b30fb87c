package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/fabricd/fabricd/internal/yamlbound"
)

// maxConfigFile bounds a configuration file, in bytes.
const maxConfigFile = 64 << 10

// A value is one setting as it was written, with its source.
type value struct {
	text   string
	source string // "flag", "FABRIC_…", "file:line"
}

// Load returns the configuration that results from the defaults, the YAML file
// (empty: none), the FABRIC_ variables in environ ("KEY=value") and the given
// flags (by key); each of them overrides the ones before. The error is a
// *ConfigError with all that is wrong, and then the configuration is not to be
// used.
func Load(file string, environ []string, flags map[string]string) (Config, error) {
	c, _, err := Explain(file, environ, flags)
	return c, err
}

// An Explained setting is one with its value and the source of that value.
type Explained struct {
	Setting
	Value  string
	Source string // "default", "file:line", "FABRIC_…" or "flag"
}

// Explain is Load that also returns all settings, in the order in which --help lists
// them. With an error there are none.
func Explain(file string, environ []string, flags map[string]string) (Config, []Explained, error) {
	c := Default()
	values := map[string]value{}
	var problems []Problem
	if file != "" {
		fromFile, found := readFile(file)
		values, problems = fromFile, found
	}
	for _, s := range settings {
		if text, ok := lookup(environ, s.Env()); ok {
			values[s.Key] = value{text, s.Env()}
		}
		if text, ok := flags[s.Key]; ok {
			values[s.Key] = value{text, "flag"}
		}
	}
	_, c.named = values["name"]
	problems = append(problems, c.apply(values)...)
	problems = append(problems, c.check(values)...)
	if len(problems) > 0 {
		return c, nil, &ConfigError{Problems: problems}
	}
	return c, c.explained(values), nil
}

// explained returns the settings of c, which values has set.
func (c *Config) explained(values map[string]value) []Explained {
	var all []Explained
	for _, s := range settings {
		e := Explained{Setting: s, Value: s.get(c), Source: "default"}
		if v, ok := values[s.Key]; ok {
			e.Source = v.source
		}
		all = append(all, e)
	}
	return all
}

// apply sets the settings in values.
func (c *Config) apply(values map[string]value) []Problem {
	var problems []Problem
	for _, s := range settings {
		v, ok := values[s.Key]
		if !ok {
			continue
		}
		if !s.set(c, v.text) {
			problems = append(problems, Problem{s.Key, v.text, v.source, "want " + s.Allowed})
		}
	}
	return problems
}

// check finds errors that no single value shows: settings that contradict each other.
func (c *Config) check(values map[string]value) []Problem {
	var problems []Problem
	report := func(key, text, allowed string) {
		problems = append(problems, Problem{key, text, values[key].source, allowed})
	}
	if n := c.Network; n.DataPort == n.GossipPort && n.DataPort != 0 {
		report("gossip-port", fmt.Sprint(n.GossipPort), "is the data port too; want another one")
	}
	if c.Local.Socket == c.Local.AdminSocket {
		report("admin", c.Local.AdminSocket, "is the applications' socket too; want another one")
	}
	if c.NodeID != 0 && c.Role == RoleHost {
		report("node-id", fmt.Sprint(c.NodeID), "is for other nodes; the host has the ID 0")
	}
	c.checkPage(report)
	c.checkProviders(report)
	c.checkAccess(values, report)
	c.checkGateways(values, report)
	t := c.TLS
	given := 0
	for _, f := range []string{t.CA, t.Cert, t.Key} {
		if f != "" {
			given++
		}
	}
	if given != 0 && given != 3 {
		for _, f := range []struct{ key, path string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}} {
			if f.path == "" {
				report(f.key, "", "an operator's CA needs all of ca, cert and key")
			}
		}
	}
	return problems
}

// UnknownEnv returns a line for each FABRIC_ variable in environ that no setting has, for a
// warning: other programs may have variables with this prefix too. Those with FABRICD_ count
// only where they are like a setting's.
func UnknownEnv(environ []string) (lines []string) {
	known := []string{"FABRIC_CONFIG"}
	for _, s := range settings {
		known = append(known, s.Env())
	}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(name, "FABRIC_")
		if !ours {
			rest, _ = strings.CutPrefix(name, "FABRICD_")
		}
		if rest == name || slices.Contains(known, name) {
			continue
		}
		line := name + " is set, and no setting has this name"
		if meant := yamlbound.Nearest("FABRIC_"+rest, known); meant != "" {
			line += "; did you mean " + meant + "?"
		} else if !ours {
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// lookup returns the last value of the variable in environ.
func lookup(environ []string, name string) (string, bool) {
	for _, kv := range slices.Backward(environ) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// readFile reads a configuration file: one mapping from keys to scalars or
// lists of scalars.
func readFile(name string) (map[string]value, []Problem) {
	text, err := readBounded(name, maxConfigFile)
	if err != nil {
		return map[string]value{}, []Problem{{"config", name, "", err.Error()}}
	}
	return parseFile(name, text)
}

// parseFile is readFile without the reading.
func parseFile(name string, text []byte) (map[string]value, []Problem) {
	values := map[string]value{}
	if yamlbound.TooDeep(text) {
		return values, []Problem{{"config", name, "", fmt.Sprintf("nested deeper than %d; want a mapping of settings to values", yamlbound.MaxNesting)}}
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return values, []Problem{syntaxProblem(name, err)}
	}
	if len(file.Docs) > 1 {
		return values, []Problem{{"config", name, "", "want one YAML document, not several"}}
	}
	var problems []Problem
	for _, doc := range file.Docs {
		entries, ok := mapping(doc.Body)
		if !ok {
			return values, []Problem{{"config", name, "", "want a mapping of settings to values"}}
		}
		for _, e := range entries {
			if p := readEntry(name, e, values); p != nil {
				problems = append(problems, *p)
			}
		}
	}
	return values, problems
}

// mapping returns the entries of a mapping; an empty document has none.
func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, true
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// readEntry adds one line of a file to values.
func readEntry(name string, e *ast.MappingValueNode, values map[string]value) *Problem {
	source := fmt.Sprintf("%s:%d", name, e.Key.GetToken().Position.Line)
	key := oneLine(e.Key.GetToken().Value)
	if !slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == key }) {
		return &Problem{key, e.Value.String(), source, "unknown setting" + nearest(key)}
	}
	text, ok := scalars(e.Value)
	if !ok {
		return &Problem{key, e.Value.String(), source, "want a value or a list of values"}
	}
	values[key] = value{text, source}
	return nil
}

// scalars returns the text of a scalar, or of a list of scalars joined by
// commas.
func scalars(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.NullNode:
		return "", true
	case *ast.SequenceNode:
		var items []string
		for _, item := range n.Values {
			text, ok := scalars(item)
			if _, nested := item.(*ast.SequenceNode); !ok || nested {
				return "", false
			}
			items = append(items, text)
		}
		return strings.Join(items, ","), true
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSuffix(n.Value.Value, "\n"), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true // as written: 0660 stays 0660
	}
	return "", false
}

// syntaxProblem turns the parser's error, which draws the file, into a line.
func syntaxProblem(name string, err error) Problem {
	if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil && e.GetToken().Position != nil {
		at := fmt.Sprintf("%s:%d", name, e.GetToken().Position.Line)
		return Problem{"config", at, "", "not YAML: " + oneLine(e.GetMessage())}
	}
	return Problem{"config", name, "", "not YAML: " + oneLine(err.Error())}
}

// oneLine returns s with control characters made spaces.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// nearest returns a hint at the setting that key may have meant.
func nearest(key string) string {
	folded := strings.ReplaceAll(strings.ToLower(key), "_", "-")
	var keys []string
	for _, s := range settings {
		keys = append(keys, s.Key)
	}
	if meant := yamlbound.Nearest(folded, keys); meant != "" {
		return "; did you mean " + meant + "?"
	}
	return "; `fabricd run --help` lists them all"
}

// readBounded reads a file of at most limit bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, cause(err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return text, nil
}

// cause returns err without the operation and the path that os adds: a problem
// names them itself.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
