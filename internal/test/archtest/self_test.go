package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// parse returns the declarations of a file with this text.
func parse(t *testing.T, text string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTheRulesBite feeds the rules texts that they must find, and texts that they must not.
func TestTheRulesBite(t *testing.T) {
	count := func(find func(*ast.File) int) func(text string, want int) {
		return func(text string, want int) {
			t.Helper()
			if got := find(parse(t, text)); got != want {
				t.Errorf("found %d, want %d, in: %s", got, want, text)
			}
		}
	}
	skips := count(func(f *ast.File) int { return len(skipped(f)) })
	skips("func TestX(t *testing.T) { t.Skip() }", 1)
	skips("func TestX(t *testing.T) { func() { t.SkipNow() }() }", 1)
	skips("func TestX(t *testing.T) { t.Run(``, func(t *testing.T) { t.Skipf(``) }) }", 1)
	skips("func TestX(t *testing.T) { rapid.Check(t, func(t *rapid.T) { t.Skip() }) }", 0)
	skips("func FuzzX(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) { t.Skip() }) }", 0)

	panics := count(func(f *ast.File) int {
		n := 0
		for _, call := range calls(f, "panic") {
			if !saysBug(call.Args[0]) {
				n++
			}
		}
		return n
	})
	panics("func F() { panic(`BUG: x`) }", 0)
	panics("func F() { panic(fmt.Sprintf(`BUG: x %d`, 1)) }", 0)
	panics("func F() { panic(`x`) }", 1)
	panics("func F(err error) { panic(err) }", 1)
	panics("func F() { panic(`oh ` + `BUG: x`) }", 1)

	docs := count(func(f *ast.File) int {
		n := 0
		for _, d := range f.Decls {
			n += len(undocumented(d))
		}
		return n
	})
	docs("func F() {}", 1)
	docs("// F does.\nfunc F() {}", 0)
	docs("func f() {}\nfunc (t *T) String() string { return `` }\nfunc (t *t) M() {}", 0)
	docs("func (t *T[K]) M() {}", 1)
	docs("type T struct{}\ntype U = T", 2)
	docs("// Numbers.\nconst (\n\tA = 1\n)\ntype (\n\tT int // a T\n)", 0)
	docs("var X int", 1)

	uses := count(func(f *ast.File) int {
		n := 0
		source{file: f}.uses("time", func(name string, _ ast.Node) {
			if name == "Sleep" {
				n++
			}
		})
		return n
	})
	uses("import \"time\"\nfunc F() { time.Sleep(1) }", 1)
	uses("import clock \"time\"\nfunc F() { clock.Sleep(1); time.Sleep(1) }", 1)
	uses("import \"time\"\nvar x = time.Second", 0)
	uses("import \"example.com/time\"\nfunc F() { time.Sleep(1) }", 0)
}
