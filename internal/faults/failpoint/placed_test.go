package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// TestEveryStepIsInTheCode looks for each step's constant in the product's code: a step that no
// goroutine reaches would be armed for nothing. Where it is placed, tests show that each is really
// met.
func TestEveryStepIsInTheCode(t *testing.T) {
	used := map[string][]string{}
	root := os.DirFS("../../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if base := path.Base(name); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "failpoint") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil // it is being edited; its own package does not build
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == "failpoint" {
					used[sel.Sel.Name] = append(used[sel.Sel.Name], name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	names := constants(t)
	if len(names) != int(stepCount)-1 {
		t.Fatalf("%d constants, want %d", len(names), stepCount-1)
	}
	for i, name := range names {
		if len(used[name]) == 0 {
			t.Errorf("%s (%s) is nowhere in the code", name, Step(i+1))
		}
	}
}

// constants returns the names of the steps' constants, in order.
func constants(t *testing.T) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "steps.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST || len(group.Specs) < int(stepCount) {
			continue
		}
		for _, spec := range group.Specs {
			if name := spec.(*ast.ValueSpec).Names[0].Name; ast.IsExported(name) {
				names = append(names, name)
			}
		}
	}
	return names
}
