package ring

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A headWord is a row of the table of a ring's head in SPEC.md.
type headWord struct {
	bits int
	by   string // writer or reader
	arms bool   // by arms it, the other side swaps in 0
}

// specification returns the section of SPEC.md that describes a ring, and its table by offset.
func specification(t *testing.T) (text string, words map[int]headWord) {
	t.Helper()
	b, err := os.ReadFile("../attach/proto/SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = strings.Cut(string(b), "### 5.1. Shared-memory paths\n")
	text, _, _ = strings.Cut(text, "\n## ")
	words = map[int]headWord{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| u(\d+) \| (armed by the )?(writer|reader) \|`).FindAllStringSubmatch(text, -1) {
		off, _ := strconv.Atoi(m[1])
		bits, _ := strconv.Atoi(m[2])
		if _, twice := words[off]; twice {
			t.Errorf("SPEC.md has two words at %d", off)
		}
		words[off] = headWord{bits, m[4], m[3] != ""}
	}
	return text, words
}

// used returns the words of the head that the package uses, as constants by their
// names, and how wide each is where it is used.
func used(t *testing.T) (offs, bits map[string]int) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "ring.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	offs, bits = map[string]int{}, map[string]int{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "off") {
			offs[v.Names[0].Name], err = strconv.Atoi(v.Values[0].(*ast.BasicLit).Value)
		}
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"reader.go", "writer.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.word(32|64)\((\w+)\)`).FindAllStringSubmatch(string(b), -1) {
			n, _ := strconv.Atoi(m[1])
			if before := bits[m[2]]; before != 0 && before != n {
				t.Errorf("%s is used with %d bits and with %d", m[2], before, n)
			}
			bits[m[2]] = n
		}
	}
	return offs, bits
}

// The words of the head are where SPEC.md has them, as wide, and no others; so are
// the sizes of the rest.
func TestLayoutIsAsSpecified(t *testing.T) {
	text, words := specification(t)
	offs, bits := used(t)
	got, want := map[int]int{}, map[int]int{}
	for name, off := range offs {
		got[off] = bits[name]
	}
	for off, w := range words {
		want[off] = w.bits
	}
	if !maps.Equal(got, want) || len(got) != len(offs) {
		t.Errorf("words by offset, in bits: %v for %v, SPEC.md has %v", got, offs, want)
	}
	flat := strings.Join(strings.Fields(text), " ")
	for _, says := range []string{
		fmt.Sprintf("head of %d bytes, `slots` slots of %d, and `data` bytes", headSize, slotSize),
		fmt.Sprintf("Up to %d bytes follow in the slot", Inline),
		fmt.Sprintf("of at most data/%d bytes", Default.Data/Default.chunk()),
		fmt.Sprintf("slots from %d to %s, data from %d to %s", MinSlots, thousands(MaxSlots), MinData, thousands(MaxData)),
		fmt.Sprintf("release is 0 to %d", MaxRelease),
	} {
		if !strings.Contains(flat, says) {
			t.Errorf("SPEC.md does not say %q", says)
		}
	}
}

// thousands writes n as people do.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// A cache line of the head has one side that writes it, or one word that one side
// arms and the other disarms; every other line of the ring is the writer's.
func TestEveryLineHasOneWriter(t *testing.T) {
	_, words := specification(t)
	lines := map[int][]int{}
	for off, w := range words {
		if off%(w.bits/8) != 0 || off+w.bits/8 > headSize {
			t.Errorf("word of %d bits at %d: not aligned, or not in the head", w.bits, off)
		}
		lines[off/slotSize] = append(lines[off/slotSize], off)
	}
	for line, offs := range lines {
		for _, off := range offs {
			if words[off].by != words[offs[0]].by || words[off].arms && len(offs) > 1 {
				t.Errorf("line %d has two writers: its words are at %v", line, offs)
			}
		}
	}
	did := stores(t)
	for off, w := range words {
		if want := w.sides(); !slices.Equal(did[off], want) {
			t.Errorf("the word at %d is stored to by %v, want %v", off, did[off], want)
		}
		delete(did, off)
	}
	for off, by := range did {
		if off < headSize || !slices.Equal(by, []string{"writer"}) {
			t.Errorf("byte %d is stored to by %v, want only the writer, and behind the head", off, by)
		}
	}
}

// sides are the sides that store to the word, sorted.
func (w headWord) sides() []string {
	if w.arms {
		return []string{"reader", "writer"}
	}
	return []string{w.by}
}

// stores makes both sides do everything and returns the sides that changed each word of the head,
// by its offset, or else each other byte, or each line after it.
func stores(t *testing.T) map[int][]string {
	t.Helper()
	_, words := specification(t)
	mem := memory(small.Size())
	w, err := NewWriter(mem, small)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(mem, small)
	if err != nil {
		t.Fatal(err)
	}
	by := map[int][]string{}
	do := func(side string, what func()) {
		before := slices.Clone(mem)
		what()
		for i := range mem {
			at := i
			for off, w := range words {
				if i >= off && i < off+w.bits/8 {
					at = off
				}
			}
			if i >= headSize {
				at = i / slotSize * slotSize
			}
			if mem[i] != before[i] && !slices.Contains(by[at], side) {
				by[at] = append(by[at], side)
			}
		}
	}
	piece := bytes.Repeat([]byte{1}, small.chunk())
	do("reader", func() { r.Ready(); r.Arm() })
	do("writer", func() {
		w.Start(1<<63 | 1)
		w.Arm()
		w.Write(piece[:1])
		w.Write(piece)
		w.WakeReader()
		w.Close()
	})
	do("reader", func() { r.Read(make([]byte, 2*len(piece))); r.Release(); r.WakeWriter(); r.Gone() })
	for _, sides := range by {
		slices.Sort(sides)
	}
	return by
}
