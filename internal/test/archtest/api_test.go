package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// public are the packages that programs import. Their exported names use their own types,
// each other's, and those of the standard library and of other modules: a type of another
// package of ours is one that a program cannot name, or of which go doc shows nothing.
var public = []string{"fabric", "fabric/embed", "fabric/fabricgrpc", "fabric/fabrictest"}

// mayShow are packages of ours whose types the public ones may show.
var mayShow = append([]string{"fabric/addr"}, public...)

func TestThePublicAPIShowsNoTypeOfOthers(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || !slices.Contains(public, f.dir) {
			continue
		}
		hidden := map[string]string{}
		for _, p := range f.imports() {
			if rel, ours := strings.CutPrefix(p, module+"/"); ours && !slices.Contains(mayShow, rel) {
				hidden[f.packageName(p)] = rel
			}
		}
		for _, n := range exported(f.file) {
			for _, at := range named(n, hidden) {
				t.Errorf("%s: what is exported here has a type of %s", f.line(at), hidden[at.X.(*ast.Ident).Name])
			}
		}
		for _, a := range aliases(f.file) {
			if from, ok := a.Type.(*ast.SelectorExpr); !ok || from.X.(*ast.Ident).Name != "addr" {
				t.Errorf("%s: %s is an alias: go doc shows neither its fields nor its constants", f.line(a), a.Name)
			}
		}
	}
}

// exported returns the types in the exported declarations of a file: of parameters,
// results, fields, variables and constants, without bodies.
func exported(f *ast.File) (all []ast.Node) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || exportedType(d.Recv.List[0].Type)) {
				all = append(all, d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				all = append(all, exportedSpec(s)...)
			}
		}
	}
	return all
}

func exportedSpec(s ast.Spec) (all []ast.Node) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			all = append(all, shown(s.Type)...)
		}
	case *ast.ValueSpec:
		if !slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
			return nil
		}
		if s.Type != nil {
			return []ast.Node{s.Type}
		}
		for _, v := range s.Values {
			all = append(all, v)
		}
	}
	return all
}

// shown returns the exported parts of a type's definition: of a struct the exported fields.
func shown(t ast.Expr) (all []ast.Node) {
	s, ok := t.(*ast.StructType)
	if !ok {
		return []ast.Node{t}
	}
	for _, field := range s.Fields.List {
		if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
			all = append(all, field.Type)
		}
	}
	return all
}

func exportedType(t ast.Expr) bool {
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	id, ok := t.(*ast.Ident)
	return !ok || id.IsExported()
}

// named returns where a node refers to one of the packages, by the names that the file
// gives them.
func named(n ast.Node, packages map[string]string) (all []*ast.SelectorExpr) {
	ast.Inspect(n, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && packages[id.Name] != "" {
				all = append(all, sel)
			}
		}
		return true
	})
	return all
}

// aliases returns the exported aliases of a file.
func aliases(f *ast.File) (all []*ast.TypeSpec) {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			for _, s := range g.Specs {
				if s := s.(*ast.TypeSpec); s.Assign.IsValid() && s.Name.IsExported() {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// TestTheAPIRuleBites feeds the rule texts that it must find, and texts that it must not.
func TestTheAPIRuleBites(t *testing.T) {
	for text, want := range map[string]int{
		"func F(x attach.Session) {}":                          1,
		"func F() (a int, b []attach.Session) { return }":      1,
		"func (n *Node) F(f func(attach.Event)) {}":            1,
		"func (n *node) F(x attach.Session) {}":                0,
		"func f(x attach.Session) {}":                          0,
		"func F() { attach.Dial() }":                           0,
		"type T struct { S attach.Session; s attach.Session }": 1,
		"type T struct { attach.Session }":                     1,
		"type T attach.Events":                                 1,
		"type T interface { F() attach.Event }":                1,
		"const A = attach.PollIn":                              1,
		"const A Events = 1":                                   0,
		"var V, w = 1, attach.X":                               1,
		"var v attach.Session":                                 0,
		"func F(x addr.NodeID) error { return nil }":           0,
		"type T struct { x map[string]attach.Session; Y int}":  0,
	} {
		got := 0
		for _, n := range exported(parse(t, text)) {
			got += len(named(n, map[string]string{"attach": "internal/attach"}))
		}
		if got != want {
			t.Errorf("found %d, want %d, in: %s", got, want, text)
		}
	}
	if n := len(aliases(parse(t, "type (\n\tA = x.B\n\tc = x.D\n\tE x.F\n)"))); n != 1 {
		t.Errorf("found %d aliases, want 1", n)
	}
}
