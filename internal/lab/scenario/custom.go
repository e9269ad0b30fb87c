package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// decode takes one entry or a list of them.
func (s *NodeSet) decode(d *decoder, path string, n ast.Node) {
	items := []ast.Node{n}
	if seq, ok := n.(*ast.SequenceNode); ok {
		items = seq.Values
	}
	if len(items) > MaxNodes {
		d.bad(path, n, fmt.Sprint(len(items)), fmt.Sprintf("want at most %d nodes", MaxNodes))
		return
	}
	*s = make(NodeSet, len(items))
	for i, item := range items {
		text, ok := "", item != nil
		if ok {
			text, ok = scalarText(item)
		} else {
			item = n
		}
		if !ok || !(*s)[i].parse(text, d.names) {
			d.bad(path, item, text, nodesAllowed+d.named())
		}
	}
}

// decode takes a list of sets.
func (g *Groups) decode(d *decoder, path string, n ast.Node) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok || len(seq.Values) < 2 || len(seq.Values) > MaxNodes {
		text, _ := scalarText(n)
		d.bad(path, n, text, "want at least two groups, as [[0, 1], [2, 3]] or [$minority, others]")
		return
	}
	*g = make(Groups, len(seq.Values))
	for i, item := range seq.Values {
		if item == nil {
			d.bad(path, n, "", "has a group that is empty")
			return
		}
		at := fmt.Sprintf("%s[%d]", path, i)
		d.note(at, item)
		(*g)[i].decode(d, at, item)
	}
}

// namesIn reads how the file names its nodes, ahead of all that may use the names.
// Errors in them are reported where they are decoded.
func namesIn(root ast.Node) (names Names) {
	for _, key := range []string{"cluster", "names"} {
		entries, _ := mapping(root)
		i := slices.IndexFunc(entries, func(e *ast.MappingValueNode) bool { return e.Key.GetToken().Value == key })
		if i < 0 {
			return nil
		}
		root = entries[i].Value
	}
	list, ok := root.(*ast.SequenceNode)
	if !ok || len(list.Values) > MaxNodes {
		return nil
	}
	for _, item := range list.Values {
		name := ""
		if item != nil {
			name, _ = scalarText(item)
		}
		names = append(names, Name(name))
	}
	return names
}

// named lists the names of nodes for a message.
func (d *decoder) named() string {
	if len(d.names) == 0 {
		return ""
	}
	return "; nodes are named " + join2(d.names[:min(len(d.names), 8)])
}

const pairsAllowed = "want none, mesh, ring, star, or a list of pairs, as [[1, 2], [0, 3]]"

// decode takes a shape or a list of pairs.
func (p *Pairs) decode(d *decoder, path string, n ast.Node) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		text, isScalar := scalarText(n)
		if p.Shape = text; !isScalar || !slices.Contains(pairShapes, text) {
			d.bad(path, n, text, pairsAllowed)
		}
		return
	}
	if len(seq.Values) > MaxSteps {
		d.bad(path, n, fmt.Sprint(len(seq.Values)), fmt.Sprintf("want at most %d pairs", MaxSteps))
		return
	}
	for _, item := range seq.Values {
		pair, ok := item.(*ast.SequenceNode)
		if !ok || len(pair.Values) != 2 {
			d.bad(path, n, shorten(n.String()), pairsAllowed)
			return
		}
		var ends [2]int
		for i, end := range pair.Values {
			text, isScalar := "", end != nil
			if isScalar {
				text, isScalar = scalarText(end)
			}
			var r NodeRef
			if !isScalar || !r.parse(text, d.names) || r.Name != "" {
				d.bad(path, item, text, pairsAllowed+d.named())
				return
			}
			ends[i] = r.ID
		}
		p.List = append(p.List, ends)
	}
}

// selections is []Selection: a mapping from names.
func (d *decoder) selections(path string, n ast.Node) []Selection {
	entries, ok := mapping(n)
	if !ok || len(entries) > 100 {
		d.bad(path, n, "", "want a mapping of at most 100 names, as {victim: {any: 1, not: [0]}}")
		return nil
	}
	var all []Selection
	for _, e := range entries {
		key := oneLine(e.Key.GetToken().Value)
		var s Selection
		switch {
		case !s.Name.parse(key):
			d.bad(join(path, shorten(key)), e.Key, key, s.Name.allowed())
			continue
		case slices.ContainsFunc(all, func(o Selection) bool { return o.Name == s.Name }):
			d.bad(join(path, key), e.Key, key, "is there twice")
			continue
		case e.Value == nil:
			d.bad(join(path, key), e.Key, "", "has no value: want {any: 1}")
			continue
		}
		d.note(join(path, key), e.Value)
		d.struct_(join(path, key), e.Value, reflect.ValueOf(&s).Elem())
		all = append(all, s)
	}
	return all
}

// parse takes a step that package failpoint knows.
func (s *StepName) parse(text string) bool {
	*s = StepName(text)
	return slices.Contains(stepNames(), text)
}

func (*StepName) allowed() string {
	names := stepNames()
	return "want a step of the protocol: " + strings.Join(names, ", ")
}
func (s StepName) String() string { return string(s) }
