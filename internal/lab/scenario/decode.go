package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/fabricd/fabricd/internal/yamlbound"
)

// A Problem is one thing that is wrong with a scenario.
type Problem struct {
	File    string // as given to [Decode]
	Line    int    // from 1; 0: of the whole
	Column  int    // from 1
	Field   string // "timeline[2].link.drop"
	Value   string // as written, shortened
	Allowed string // the allowed values, or why it cannot be
}

// String returns the problem as one line: "file:line:column: field: value: allowed
// values".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	fmt.Fprintf(&b, "%s: %s: %s", p.Field, strconv.Quote(p.Value), p.Allowed)
	return b.String()
}

// An Error is all that is wrong with a scenario, at most [MaxProblems].
type Error struct {
	Problems []Problem // at least one
}

// MaxProblems bounds the problems of one [Error].
const MaxProblems = 20

// Error returns the problems, one a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Decode reads a scenario. file names it in errors. The error is an *[Error].
func Decode(file string, text []byte) (*Scenario, error) {
	d := decoder{file: file, places: map[string]place{}}
	s := &Scenario{}
	if root := d.parse(text); root != nil {
		d.names = namesIn(root)
		d.struct_("", root, reflect.ValueOf(s).Elem())
	}
	if err := d.check(s); err != nil {
		return nil, err
	}
	return s, nil
}

// check returns the errors in the file, or in the scenario that it is.
func (d *decoder) check(s *Scenario) error {
	if len(d.problems) == 0 {
		s.setDefaults()
		d.problems = s.problems()
		for i := range d.problems {
			d.locate(&d.problems[i])
		}
	}
	return d.failure()
}

// failure returns the problems in the order of the file, nil if there are none.
func (d *decoder) failure() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		return (a.Line-b.Line)*1000 + min(a.Column, 999) - min(b.Column, 999)
	})
	return &Error{d.problems[:min(len(d.problems), MaxProblems)]}
}

// A place is where something is in the file.
type place struct{ line, column int }

// placeOf returns where a token is, if that is known.
func placeOf(t *token.Token) (place, bool) {
	if t == nil || t.Position == nil {
		return place{}, false
	}
	return place{max(t.Position.Line, 1), max(t.Position.Column, 1)}, true
}

// A decoder turns YAML nodes into values and remembers where they were.
type decoder struct {
	file     string
	names    Names // of the nodes, as the file has them
	places   map[string]place
	problems []Problem
}

// parse returns the mapping that the file is.
func (d *decoder) parse(text []byte) (root ast.Node) {
	whole := func(value, allowed string) {
		d.problems = append(d.problems, Problem{d.file, 0, 0, "scenario", value, allowed})
	}
	if len(text) > MaxFile {
		whole(fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("want at most %d", MaxFile))
		return nil
	}
	if yamlbound.TooDeep(text) {
		whole("", fmt.Sprintf("nested deeper than %d", yamlbound.MaxNesting))
		return nil
	}
	file, err := parser.ParseBytes(text, 0)
	switch {
	case err != nil:
		d.syntax(err)
		return nil
	case len(file.Docs) > 1:
		whole(fmt.Sprintf("%d documents", len(file.Docs)), "want one YAML document")
		return nil
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		whole("", "want a mapping")
		return nil
	}
	return file.Docs[0].Body
}

// syntax turns the parser's error, which draws the file, into a line.
func (d *decoder) syntax(err error) {
	p := Problem{File: d.file, Field: "scenario", Allowed: "not YAML: " + oneLine(err.Error())}
	if e, ok := errors.AsType[yaml.Error](err); ok {
		p.Allowed = "not YAML: " + oneLine(e.GetMessage())
		if at, ok := placeOf(e.GetToken()); ok {
			p.Line, p.Column, p.Value = at.line, at.column, shorten(e.GetToken().Value)
		}
	}
	d.problems = append(d.problems, p)
}

// bad reports a problem at a node.
func (d *decoder) bad(path string, n ast.Node, value, allowed string) {
	p := Problem{File: d.file, Field: path, Value: shorten(value), Allowed: allowed}
	at, _ := placeOf(n.GetToken())
	p.Line, p.Column = at.line, at.column
	d.problems = append(d.problems, p)
}

// locate gives a problem of the whole the place of its field, or of the
// nearest one above it.
func (d *decoder) locate(p *Problem) {
	p.File = d.file
	for path := p.Field; ; {
		if at, ok := d.places[path]; ok {
			p.Line, p.Column = at.line, at.column
			return
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return
		}
		path = path[:i]
	}
}

// note remembers where the value of path is.
func (d *decoder) note(path string, n ast.Node) {
	if at, ok := placeOf(n.GetToken()); ok {
		d.places[path] = at
	}
}

// value decodes n into v.
func (d *decoder) value(path string, n ast.Node, v reflect.Value, f field) {
	d.note(path, n)
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		d.bad(path, n, n.GetToken().Value, "anchors, aliases and tags are not taken: write it out")
		return
	}
	if custom, ok := v.Addr().Interface().(interface {
		decode(*decoder, string, ast.Node)
	}); ok {
		custom.decode(d, path, n)
		return
	}
	if v.Type() == reflect.TypeFor[[]Selection]() {
		v.Set(reflect.ValueOf(d.selections(path, n)))
		return
	}
	switch s, isScalar := v.Addr().Interface().(scalar); {
	case isScalar || v.Kind() == reflect.String || v.Kind() == reflect.Int || v.Kind() == reflect.Bool:
		d.scalar(path, n, v, s, f)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.struct_(path, n, v.Elem())
	case v.Kind() == reflect.Slice:
		d.slice(path, n, v)
	default:
		d.struct_(path, n, v)
	}
}

// scalar decodes one word.
func (d *decoder) scalar(path string, n ast.Node, v reflect.Value, s scalar, f field) {
	text, ok := scalarText(n)
	allowed, good := describe(v.Type(), s, f), false
	switch {
	case !ok:
	case s != nil:
		good = s.parse(text) && f.inRange(v)
	case v.Kind() == reflect.Int:
		i, err := strconv.Atoi(text)
		v.SetInt(int64(i))
		good = err == nil && strconv.Itoa(i) == text && f.inRange(v)
	case v.Kind() == reflect.Bool:
		v.SetBool(text == "true")
		good = text == "true" || text == "false"
	default:
		v.SetString(text)
		good = slices.Contains(words[v.Type()], text)
	}
	if !good {
		d.bad(path, n, text, allowed)
	}
}

// scalarText returns a scalar as it is written.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return shorten(oneLine(n.String())), false
}

// slice decodes a sequence.
func (d *decoder) slice(path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		text, _ := scalarText(n)
		d.bad(path, n, text, "want a list")
		return
	}
	if len(seq.Values) > MaxSteps {
		d.bad(path, n, fmt.Sprint(len(seq.Values)), fmt.Sprintf("want a list of at most %d", MaxSteps))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		if item == nil {
			d.bad(path, n, "", "has an entry that is empty")
			return
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i), field{})
	}
}

// struct_ decodes a mapping.
func (d *decoder) struct_(path string, n ast.Node, v reflect.Value) {
	entries, ok := mapping(n)
	if !ok {
		text, _ := scalarText(n)
		d.bad(cmp.Or(path, "scenario"), n, text, "want a mapping of "+keysOf(v.Type()))
		return
	}
	fields, seen := fieldsOf(v.Type()), map[string]bool{}
	for _, e := range entries {
		key := oneLine(e.Key.GetToken().Value)
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		switch {
		case i < 0:
			d.bad(join(path, shorten(key)), e.Key, shorten(key), "unknown key: want "+keysOf(v.Type())+didYouMean(key, fields))
		case seen[key]:
			d.bad(join(path, key), e.Key, key, "is there twice")
		case e.Value == nil || e.Value.Type() == ast.NullType:
			d.bad(join(path, key), e.Key, "", "has no value: leave it out, or say "+fields[i].doc)
		default:
			d.value(join(path, key), e.Value, v.FieldByIndex(fields[i].index), fields[i])
		}
		seen[key] = true
	}
	for _, f := range fields {
		if f.need && !seen[f.key] {
			d.bad(join(path, f.key), n, "", "is missing: "+f.doc)
		}
	}
}

// mapping returns the entries of a mapping.
func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// shorten returns s as it fits in a message.
func shorten(s string) string {
	s = oneLine(s)
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:57], "") + "..."
	}
	return s
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
