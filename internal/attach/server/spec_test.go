package server

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// Clients in other languages are written from SPEC.md: it must name every operation of the server.
func TestSpecificationNamesEverything(t *testing.T) {
	b, err := os.ReadFile("../proto/SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	spec := string(b)
	listed := map[proto.Op]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) [A-Z_]+`).FindAllStringSubmatch(spec, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 16)
		listed[proto.Op(n)] = true
	}
	for o := range operations {
		if !listed[o] {
			t.Errorf("operation %d is not in SPEC.md", o)
		}
	}
	if want := len(operations) + 1; len(listed) != want { // HELLO is served before the others
		t.Errorf("SPEC.md lists %d operations, want %d", len(listed), want)
	}
	for c := status.OK; c.Error() != fmt.Sprintf("status %d", c); c++ {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)(^|[^0-9])%d\s[A-Z][A-Za-z]+\s+(–|E[A-Z0-9]+)`, c)).MatchString(spec) {
			t.Errorf("code %d is not in SPEC.md", c)
		}
	}
	for _, limit := range []string{"65,536", "1024", "4096", "1 MiB", "512", "1 GiB"} {
		if !strings.Contains(spec, limit) {
			t.Errorf("SPEC.md does not name the limit %s", limit)
		}
	}
}
