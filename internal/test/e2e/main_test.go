package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	roleEnv = "FABRICD_E2E_ROLE" // makes this binary an application; see roles
	longEnv = "FABRICD_E2E_LONG"
	seedEnv = "FABRICD_E2E_SEED"
	keepEnv = "FABRICD_E2E_KEEP"
	// The providers of nodes, as for --providers; see overEach.
	providersEnv = "FABRICD_E2E_PROVIDERS"
)

// Set by TestMain before any test runs.
var (
	rootDir    string // of everything that the tests write
	fabricdExe string
	long       bool
	seed       uint64 // of everything random; printed
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(runRole(role))
	}
	os.Exit(runTests(m))
}

// runTests runs the tests and then checks that nothing is left of them.
func runTests(m *testing.M) int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	fmt.Printf("e2e: seed %d (%s=%d repeats it)\n", seed, seedEnv, seed)
	began := time.Now()
	code := m.Run()
	theSpawner.close()
	if os.Getenv(keepEnv) != "" {
		fmt.Println("e2e: kept", rootDir)
	} else if err := os.RemoveAll(rootDir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	if err := leftovers(began); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: left behind:", err)
		code = 1
	}
	return code
}

// prepare makes the directory, the seed and fabricd.
func prepare() (err error) {
	seed = uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			return fmt.Errorf("%s: %w", seedEnv, err)
		}
	}
	long = os.Getenv(longEnv) != ""
	if rootDir, err = os.MkdirTemp("", "fabricd-e2e-"); err != nil {
		return err
	}
	fabricdExe = filepath.Join(rootDir, "fabricd")
	build := exec.Command("go", "build", "-trimpath", "-o", fabricdExe, "github.com/fabricd/fabricd/cmd/fabricd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(rootDir)
		return fmt.Errorf("build fabricd: %w\n%s", err, out)
	}
	theSpawner = newSpawner()
	return nil
}

// leftovers returns an error for leftovers of the tests: goroutines, shared memory in
// this process, processes that run our fabricd, files in /dev/shm.
func leftovers(began time.Time) error {
	var errs []error
	if err := goleak.Find(); err != nil {
		errs = append(errs, err)
	}
	if kinds, err := descriptors(os.Getpid()); err != nil || kinds["memfd"]+kinds["unix"] > 0 {
		errs = append(errs, fmt.Errorf("descriptors of the test %v, want no memfd and no Unix socket: %v", kinds, err))
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		errs = append(errs, err)
	}
	for _, link := range exes {
		// A process that ended meanwhile, or is another user's, has no link.
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, fabricdExe) {
			errs = append(errs, fmt.Errorf("process %s runs", filepath.Dir(link)))
		}
	}
	shm, err := os.ReadDir("/dev/shm")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, f := range shm {
		if info, err := f.Info(); err == nil && info.ModTime().After(began) && strings.Contains(f.Name(), "fabric") {
			errs = append(errs, fmt.Errorf("/dev/shm/%s", f.Name()))
		}
	}
	return errors.Join(errs...)
}

// scale returns how often to do something: n, fewer with -short or the race
// detector, many more in a long run.
func scale(n, fewer, more int) int {
	switch {
	case long:
		return more
	case testing.Short() || raceEnabled:
		return fewer
	}
	return n
}
