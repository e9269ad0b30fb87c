package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fabricdExe is the fabricd that the labs of the tests run.
var fabricdExe string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests builds fabricd, gives the tests a directory of their own for
// temporary files, and checks that nothing of them is left.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fabricd-chaos-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	fabricdExe = filepath.Join(dir, "fabricd")
	build := exec.Command("go", "build", "-trimpath", "-o", fabricdExe, "github.com/fabricd/fabricd/cmd/fabricd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build fabricd: %v\n%s", err, out)
		return 1
	}
	tmp := filepath.Join(dir, "t")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("TMPDIR", tmp)
	code := m.Run()
	if left := ownLeftovers(tmp); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "chaos: left behind:", strings.Join(left, " "))
		code = 1
	}
	return code
}

// ownLeftovers returns the leftovers of these tests' runs on the machine.
func ownLeftovers(tmp string) []string {
	var left []string
	for _, dir := range slices.Concat([]string{tmp, netnsDir}, cgroupDirs) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // there is no such directory here
		}
		for _, e := range entries {
			n, ok := nameIn(e.Name())
			if ok && (dir == tmp || !n.alive() || strings.HasPrefix(string(n), ownPrefix())) {
				left = append(left, filepath.Join(dir, e.Name()))
			}
		}
	}
	return left
}

func ownPrefix() string {
	return strings.TrimSuffix(string(ownName(0)), "0")
}
