package archtest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// linked bounds the modules besides this one whose packages a program has. gRPC and the
// driver of PostgreSQL are for the programs that import them.
var linked = map[string]int{
	"examples/echo":     1, // x/sys
	"examples/grpc":     6, // gRPC, and x/net, x/sys, x/text, protobuf, genproto, which it brings
	"examples/postgres": 2, // x/sys, and the driver
	"cmd/fabricd":       32,
}

func TestModulesStayInTheirBudgets(t *testing.T) {
	for program, most := range linked {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", module+"/"+program).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", program, err)
		}
		all := strings.Fields(string(out))
		slices.Sort(all)
		all = slices.Compact(all)
		if n := len(all) - 1; n > most {
			t.Errorf("%s links %d modules, more than its bound of %d: %v", program, n, most, all)
		}
	}
}
