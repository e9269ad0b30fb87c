package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A source is one Go file of the tree, parsed.
type source struct {
	name string // from the root, slash-separated
	dir  string
	test bool
	text []byte
	fset *token.FileSet
	file *ast.File
}

var parseTree = sync.OnceValues(func() ([]source, error) {
	root := os.DirFS("../../..")
	var all []source
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := path.Base(name); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "out") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{name, path.Dir(name), strings.HasSuffix(name, "_test.go"), text, fset, f})
		return nil
	})
	return all, err
})

// sources returns every Go file of the tree, parsed once.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parseTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files: the walk does not see the tree", len(all))
	}
	return all
}

// imports returns the file's import paths.
func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// line returns the place of n as "file:line".
func (s source) line(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// packageName returns the name under which the file refers to the import path,
// "" if it does not import it.
func (s source) packageName(importPath string) string {
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		if p != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		if base := path.Base(p); base != "v2" {
			return base
		}
		return path.Base(path.Dir(p))
	}
	return ""
}

// uses runs fn for every use of importPath's names in the file.
func (s source) uses(importPath string, fn func(name string, at ast.Node)) {
	pkg := s.packageName(importPath)
	if pkg == "" {
		return
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg {
				fn(sel.Sel.Name, n)
			}
		}
		return true
	})
}
