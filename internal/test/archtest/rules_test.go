package archtest

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pure lists the packages that decide and do nothing else: no clock, no
// goroutine, no lock, no randomness, no input or output.
var pure = []string{"internal/core", "rma", "fence", "portmap", "internal/codec", "internal/wire", "internal/access", "membership/verdict", "internal/lab/load"}

// impure are the imports that a pure package must not have, beside those of
// clockFuncs.
var impure = []string{"net", "os", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "log"}

// clockFuncs are the functions of package time that read a clock or start a
// timer. A pure package may use the package's values.
var clockFuncs = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}

// repeatable lists the packages whose result is a function of their arguments,
// a seed among them: as pure, but with random numbers that the seed decides.
var repeatable = []string{"internal/lab/sim"}

func TestPurePackagesOnlyDecide(t *testing.T) {
	for _, f := range sources(t) {
		seeded := slices.Contains(repeatable, f.dir)
		if f.test || !seeded && !slices.Contains(pure, f.dir) {
			continue
		}
		for _, p := range f.imports() {
			if slices.Contains(impure, p) && !(seeded && p == "math/rand/v2") {
				t.Errorf("%s: %s is pure and may not import %s", f.name, f.dir, p)
			}
		}
		f.uses("time", func(name string, at ast.Node) {
			if slices.Contains(clockFuncs, name) {
				t.Errorf("%s: %s is pure: time is an argument, not time.%s", f.line(at), f.dir, name)
			}
		})
		ast.Inspect(f.file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: %s is pure and may not start a goroutine", f.line(g), f.dir)
			}
			return true
		})
	}
}

// logTypes are the names of package log that are allowed: they give a library that wants a
// *log.Logger one that writes to ours.
var logTypes = []string{"New", "Logger", "Lmsgprefix"}

func TestLibraryCodeNeitherExitsNorSleeps(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || slices.Contains(forTests, f.dir) {
			continue
		}
		f.uses("time", func(name string, at ast.Node) {
			if name == "Sleep" {
				t.Errorf("%s: time.Sleep: wait for an event or a timer that can be stopped", f.line(at))
			}
		})
		example := strings.HasPrefix(f.dir, "examples/") // a program of the user's, which may use package log
		if !strings.HasPrefix(f.dir, "cmd/") && !strings.HasPrefix(f.dir, "deploy/apps/") && !example {
			f.uses("os", func(name string, at ast.Node) {
				if name == "Exit" {
					t.Errorf("%s: os.Exit belongs in commands", f.line(at))
				}
			})
		}
		f.uses("log", func(name string, at ast.Node) {
			if !slices.Contains(logTypes, name) && !example {
				t.Errorf("%s: log.%s: logs are zerolog, passed in", f.line(at), name)
			}
		})
		if slices.Contains(f.imports(), "github.com/rs/zerolog/log") {
			t.Errorf("%s: no global logger", f.name)
		}
	}
}

// TestBubblesAreOurs holds every test to internal/test/bubble, which says why: with the
// race detector synctest.Test ends the process now and then.
func TestBubblesAreOurs(t *testing.T) {
	for _, f := range sources(t) {
		if f.dir == "internal/test/bubble" {
			continue
		}
		f.uses("testing/synctest", func(name string, at ast.Node) {
			if name == "Test" {
				t.Errorf("%s: synctest.Test: use bubble.Test", f.line(at))
			}
		})
	}
}

// TestPanicsAreBugs allows a panic only for a cause that no input can bring about.
func TestPanicsAreBugs(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || slices.Contains(forTests, f.dir) {
			continue
		}
		for _, decl := range f.file.Decls {
			if calls(decl, "recover") != nil {
				continue // it passes unknown values on
			}
			for _, call := range calls(decl, "panic") {
				if !saysBug(call.Args[0]) {
					t.Errorf("%s: a panic is for what no input can cause and begins with \"BUG: \"", f.line(call))
				}
			}
		}
	}
}

// calls returns the calls of a built-in function below n.
func calls(n ast.Node, name string) []*ast.CallExpr {
	var found []*ast.CallExpr
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == name {
				found = append(found, call)
			}
		}
		return true
	})
	return found
}

// saysBug reports whether the first string in the expression begins with BUG.
func saysBug(e ast.Expr) bool {
	said, found := false, false
	ast.Inspect(e, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && !found {
			found = true
			s, _ := strconv.Unquote(lit.Value)
			said = strings.HasPrefix(s, "BUG: ")
		}
		return true
	})
	return said
}

func TestFilesAreFormatted(t *testing.T) {
	for _, f := range sources(t) {
		formatted, err := format.Source(f.text)
		if err != nil {
			t.Errorf("%s: %v", f.name, err)
		} else if !bytes.Equal(formatted, f.text) {
			t.Errorf("%s: not formatted (gofmt -w)", f.name)
		}
	}
}

func TestPackagesAndExportedNamesHaveDocs(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		documented[f.dir] = documented[f.dir] || f.file.Doc != nil
		for _, decl := range f.file.Decls {
			for _, n := range undocumented(decl) {
				t.Errorf("%s: exported %s has no doc comment", f.line(decl), n)
			}
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// undocumented returns the exported names of a declaration that no comment
// documents. In a group a comment above the group or the name, or behind the
// name, will do.
func undocumented(decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) && !wellKnown[d.Name.Name] {
			return []string{d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil && !d.Lparen.IsValid() {
					names = append(names, s.Names[0].Name)
				}
			}
		}
		return names
	}
	return nil
}

// wellKnown are methods whose meaning the standard library has fixed.
var wellKnown = map[string]bool{"Error": true, "String": true, "Unwrap": true, "Is": true, "Len": true, "Less": true, "Swap": true}

// exportedReceiver reports whether d is a function, or a method of an exported
// type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

func TestNothingIsMarkedUnfinished(t *testing.T) {
	for _, f := range sources(t) {
		if f.dir == "internal/test/archtest" {
			continue
		}
		for _, group := range f.file.Comments {
			if m := unfinished.FindString(group.Text()); m != "" {
				t.Errorf("%s: a comment says %s", f.line(group), m)
			}
		}
	}
}

// TestNoTestIsSkipped allows a property test to discard a draw, and a fuzz
// target an input, and nothing else.
func TestNoTestIsSkipped(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || slices.Contains(forTests, f.dir) {
			for _, at := range skipped(f.file) {
				t.Errorf("%s: a skipped test proves nothing", f.line(at))
			}
		}
	}
}

// skipped returns where tests are skipped in a file.
func skipped(file ast.Node) []ast.Node {
	var found []ast.Node
	ast.Walk(skips{found: &found}, file)
	return found
}

// skips visits a file and tracks the type of t in the innermost function.
type skips struct {
	found *[]ast.Node
	tests bool // it is a *testing.T, and the function has no other parameter
}

func (v skips) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.FuncDecl:
		v.tests = isTest(n.Type)
	case *ast.FuncLit:
		v.tests = isTest(n.Type) || v.tests && !hasT(n.Type)
	case *ast.SelectorExpr:
		id, ok := n.X.(*ast.Ident)
		if ok && id.Name == "t" && v.tests && strings.HasPrefix(n.Sel.Name, "Skip") {
			*v.found = append(*v.found, n)
		}
	}
	return v
}

// hasT reports whether a function has a parameter t of its own.
func hasT(f *ast.FuncType) bool {
	return slices.ContainsFunc(f.Params.List, func(p *ast.Field) bool {
		return slices.ContainsFunc(p.Names, func(id *ast.Ident) bool { return id.Name == "t" })
	})
}

// isTest reports whether a function has the form of a test or subtest.
func isTest(f *ast.FuncType) bool {
	if !hasT(f) || len(f.Params.List) != 1 {
		return false
	}
	star, ok := f.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "T" && sel.X.(*ast.Ident).Name == "testing"
}
