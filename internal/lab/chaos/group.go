package chaos

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A group takes processor time and memory from processes by control groups, of
// either version.
type group struct {
	name Name

	mu   sync.Mutex // guards the field below
	made []string   // directories, in the order of their making
}

// Where control groups are. Version 1 has a tree for each resource.
const (
	cpuTree     = "/sys/fs/cgroup/cpu"
	memoryTree  = "/sys/fs/cgroup/memory"
	unifiedTree = "/sys/fs/cgroup"
)

// unified reports whether this machine has version 2.
func unified() bool {
	_, err := os.Stat(filepath.Join(unifiedTree, "cgroup.controllers"))
	return err == nil
}

// tree returns where a resource's groups are.
func tree(version1 string) string {
	if unified() {
		return unifiedTree
	}
	return version1
}

// check refuses a schedule with squeezes that this machine does not allow.
func (g *group) check(s *scenario.Schedule) error {
	for _, a := range s.Actions {
		dir := ""
		switch {
		case a.CPU != nil && a.CPU.Share != 0:
			dir = tree(cpuTree)
		case a.Memory != nil:
			dir = tree(memoryTree)
		default:
			continue
		}
		probe := filepath.Join(dir, string(g.name)+"-probe")
		err := os.Mkdir(probe, 0o755)
		if err == nil {
			err = os.Remove(probe)
		}
		if err != nil {
			return &Refusal{text: fmt.Sprintf("%s: this machine lets no user make control groups in %s", a.What(), dir), err: err}
		}
	}
	return nil
}

// make makes a group below a tree.
func (g *group) make(tree, name string) (string, error) {
	dir := filepath.Join(tree, string(g.name)+"-"+name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made = append(g.made, dir)
	return dir, nil
}

// close removes all groups. The processes in them have ended.
func (g *group) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, dir := range g.made {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	g.made = nil
	return errors.Join(errs...)
}

// squeeze puts the processes of a node into a group with a limit.
func (g *group) squeeze(_ context.Context, s *node, a scenario.Action) (effect, error) {
	if a.Memory != nil {
		return g.limitMemory(s, a)
	}
	return g.limitCPU(s, a)
}

// cpuPeriod is the period of the scheduler's bandwidth control in µs, the
// kernel's default.
const cpuPeriod = 100_000

func (g *group) limitCPU(s *node, a scenario.Action) (effect, error) {
	dir, err := g.make(tree(cpuTree), fmt.Sprintf("n%d-%d", s.index, a.ID))
	if err != nil {
		return nil, err
	}
	quota := max(1000, int(float64(a.CPU.Share)/100*cpuPeriod))
	set := map[string]string{"cpu.cfs_period_us": strconv.Itoa(cpuPeriod), "cpu.cfs_quota_us": strconv.Itoa(quota)}
	if unified() {
		set = map[string]string{"cpu.max": fmt.Sprintf("%d %d", quota, cpuPeriod)}
	}
	return g.enter(s, dir, set, func() (uint64, string) {
		n := readKey(filepath.Join(dir, "cpu.stat"), "nr_throttled")
		return n, fmt.Sprintf("held back in %d periods of %d ms", n, cpuPeriod/1000)
	})
}

func (g *group) limitMemory(s *node, a scenario.Action) (effect, error) {
	dir, err := g.make(tree(memoryTree), fmt.Sprintf("n%d-%d", s.index, a.ID))
	if err != nil {
		return nil, err
	}
	limit, counter, key := "memory.limit_in_bytes", "memory.failcnt", ""
	if unified() {
		limit, counter, key = "memory.max", "memory.events", "max"
	}
	return g.enter(s, dir, map[string]string{limit: strconv.FormatInt(int64(a.Memory.Limit), 10)}, func() (uint64, string) {
		n := readKey(filepath.Join(dir, counter), key)
		return n + 1, fmt.Sprintf("limited to %s, which was reached %d times", a.Memory.Limit, n)
	})
}

// enter sets the limits of a group and moves the node's processes there, now
// and when they are started while it lasts.
func (g *group) enter(s *node, dir string, set map[string]string, count func() (uint64, string)) (effect, error) {
	for name, value := range set {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0); err != nil {
			return nil, err
		}
	}
	if err := s.enterGroup(dir); err != nil {
		return nil, err
	}
	return undoBy(func(context.Context) (uint64, string, error) {
		fired, proof := count()
		return fired, proof, s.leaveGroup(dir)
	}), nil
}

// addToGroup moves a process to a group. One that has ended is not there to be
// moved.
func addToGroup(dir string, pid int) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if err != nil && stateOf(pid) == "" {
		return nil
	}
	return err
}

// emptyGroup moves all processes of a group to the root of its tree.
func emptyGroup(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(pid); err == nil {
			errs = append(errs, addToGroup(filepath.Dir(dir), n))
		}
	}
	return errors.Join(errs...)
}

// readKey returns a number of a control group's file: of the line that begins
// with key, or of a file that has nothing else.
func readKey(path, key string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		fields := strings.Fields(in.Text())
		if len(fields) == 0 || key != "" && fields[0] != key {
			continue
		}
		if n, err := strconv.ParseUint(fields[len(fields)-1], 10, 64); err == nil {
			return n
		}
	}
	return 0
}
