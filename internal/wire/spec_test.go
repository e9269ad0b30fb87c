package wire

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// A second implementation is written from SPEC.md: its table has every frame by its number and
// name, and every code with its errno.
func TestSpecificationNamesEverything(t *testing.T) {
	b, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	spec := string(b)
	listed := map[Type]bool{}
	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Za-z]+) \| .* \| (?:(\d+)–)?(\d+) \|$`)
	for _, m := range row.FindAllStringSubmatch(spec, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 8)
		typ := Type(n)
		listed[typ] = true
		if !typ.Known() || typ.String() != m[2] {
			t.Errorf("SPEC.md has frame %d as %s, the code as %s", n, m[2], typ)
		}
	}
	for n := range 256 {
		if typ := Type(n); typ.Known() && !listed[typ] {
			t.Errorf("frame %d, %s, is not in SPEC.md", n, typ)
		}
	}
	for c := status.OK; c.Error() != fmt.Sprintf("status %d", c); c++ {
		if !regexp.MustCompile(fmt.Sprintf(`\| %d \| [A-Z]+ \| (–|E[A-Z]+) \|`, c)).MatchString(spec) {
			t.Errorf("code %d, %v, is not in SPEC.md", c, c)
		}
	}
}
