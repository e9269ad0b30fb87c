package archtest

import (
	"bytes"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A lineBudget bounds the lines of Go without tests in some folders.
type lineBudget struct {
	name   string
	in     []string
	most   int // more fails
	target int // of the design
}

// The bounds are the tree's numbers, rounded up: it may shrink, and the bound with it.
var lineBudgets = []lineBudget{
	{"transport, path, engine, attach, ring, shm", []string{"internal/transport", "internal/path", "internal/engine", "internal/attach", "internal/ring", "internal/shm"}, 30_450, 20_000},
	{"cmd/fabric-bench", []string{"cmd/fabric-bench"}, 6_500, 6_500},
	{"internal/lab", []string{"internal/lab"}, 26_800, 24_000},
	{"all", []string{""}, 131_600, 80_000},
}

func (b lineBudget) has(dir string) bool {
	return slices.ContainsFunc(b.in, func(in string) bool {
		return in == "" || dir == in || strings.HasPrefix(dir, in+"/")
	})
}

func TestLinesStayInTheirBudgets(t *testing.T) {
	for _, b := range lineBudgets {
		lines := 0
		for _, s := range sources(t) {
			if !s.test && b.has(s.dir) {
				lines += bytes.Count(s.text, []byte("\n"))
			}
		}
		t.Logf("%s: %d lines, bound %d, target %d", b.name, lines, b.most, b.target)
		if lines > b.most {
			t.Errorf("%s has %d lines, more than its bound of %d", b.name, lines, b.most)
		}
	}
}

// wordClauses are clauses that hide the subject, in comments.
var wordClauses = regexp.MustCompile(`(?i)\b(who|what)\b`)

// TestNumbersOfStyle prints the tree's numbers, in the columns of other trees' tables.
func TestNumbersOfStyle(t *testing.T) {
	var files, functions []int
	var code, tests, comments, clauses, exported, documented int
	for _, s := range sources(t) {
		n := bytes.Count(s.text, []byte("\n"))
		if s.test {
			tests += n
			continue
		}
		code += n
		files = append(files, n)
		for _, g := range s.file.Comments {
			comments += s.fset.Position(g.End()).Line - s.fset.Position(g.Pos()).Line + 1
			clauses += len(wordClauses.FindAllString(g.Text(), -1))
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions = append(functions, s.fset.Position(f.End()).Line-s.fset.Position(f.Pos()).Line+1)
			}
			e, doc := exportedBy(d)
			exported, documented = exported+e, documented+doc
		}
	}
	slices.Sort(files)
	slices.Sort(functions)
	t.Logf("files: %d, median %d lines, p90 %d, largest %d", len(files), quantile(files, 50), quantile(files, 90), files[len(files)-1])
	t.Logf("functions: %d, median %d lines, p90 %d, up to 40 lines %.1f %%, up to 60 %.1f %%", len(functions),
		quantile(functions, 50), quantile(functions, 90), share(functions, 40), share(functions, 60))
	perThousand := 1000 * float64(clauses) / float64(comments)
	t.Logf("comments: %.0f %% of the lines, %.1f clauses with who or what per 1,000 of them", 100*float64(comments)/float64(code), perThousand)
	t.Logf("exported names with documentation: %.1f %%; lines of tests per line of code: %.2f", 100*float64(documented)/float64(exported), float64(tests)/float64(code))
	if documented*100 < exported*97 {
		t.Errorf("%d of %d exported names are documented, want 97 %%", documented, exported)
	}
	if short := share(functions, 40); short < 99 {
		t.Errorf("%.1f %% of the functions have up to 40 lines, want 99 %%", short)
	}
	if perThousand >= 3 {
		t.Errorf("%d clauses with who or what in %d lines of comments, %.1f per 1,000, want fewer than 3.0: name the subject", clauses, comments, perThousand)
	}
}

// The design's bounds of one declaration.
const (
	mostFunctionLines = 60
	mostFields        = 25
)

// wideTypes are the struct types with more than mostFields fields, each with its reason.
var wideTypes = map[string]string{
	"fabric/embed.Config":       "plain data: the settings of a node, for applications",
	"internal/daemon.Status":    "plain data: the output of fabricd status",
	"internal/faults.Rule":      "plain data: a rule as its file and its flags have it",
	"internal/lab/history.line": "plain data: a line of a history, with the fields of every kind of event",
	"membership.Config":         "plain data: the settings and functions that Start takes",
}

func TestDeclarationsStaySmall(t *testing.T) {
	wide := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if lines := s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1; lines > mostFunctionLines {
					t.Errorf("%s: %s has %d lines, at most %d are allowed", s.line(n), n.Name.Name, lines, mostFunctionLines)
				}
			case *ast.TypeSpec:
				name, fields := s.dir+"."+n.Name.Name, fieldsOf(n)
				if fields <= mostFields {
					break
				}
				if wide[name] = true; wideTypes[name] == "" {
					t.Errorf("%s: %s has %d fields, at most %d are allowed", s.line(n), name, fields, mostFields)
				}
			}
			return true
		})
	}
	for name, reason := range wideTypes {
		if !wide[name] {
			t.Errorf("%s (%s) has at most %d fields: it needs no exception", name, reason, mostFields)
		}
	}
}

// fieldsOf returns how many fields a struct type has; an embedded one is one. 0: another type.
func fieldsOf(spec *ast.TypeSpec) int {
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return 0
	}
	return st.Fields.NumFields()
}

// quantile returns the p-th percentile of sorted numbers.
func quantile(sorted []int, p int) int { return sorted[min(len(sorted)*p/100, len(sorted)-1)] }

// share is how many per cent of sorted numbers are at most n.
func share(sorted []int, n int) float64 {
	at, _ := slices.BinarySearch(sorted, n+1)
	return 100 * float64(at) / float64(len(sorted))
}

// exportedBy returns how many names d exports, but for methods, and how many of them have
// documentation of their own or of their group.
func exportedBy(d ast.Decl) (exported, documented int) {
	add := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		exported++
		if slices.ContainsFunc(docs, func(g *ast.CommentGroup) bool { return g != nil }) {
			documented++
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name, d.Doc)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				add(spec.Name, spec.Doc, d.Doc)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					add(name, spec.Doc, spec.Comment, d.Doc)
				}
			}
		}
	}
	return exported, documented
}
