package shm

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/internal/status"
)

// fits refuses a request for more memory than there is. The kernel would not refuse
// it: an allocation without bound ends with the OOM killer, in any process, and not
// with an error. Some memory is left for other processes.
func fits(size, available int64, where string) error {
	if size <= available-available/16 {
		return nil
	}
	return fmt.Errorf("memory of %d bytes: only %d are available %s: %w", size, available, where, status.NoMemory)
}

// fitsHere asks fits about the machine and about the memory cgroup.
func fitsHere(size int64) error {
	if free, bound, ok := Available(); ok {
		return fits(size, free, bound)
	}
	return nil
}

// Available returns how many bytes of memory can be allocated here, and a text for
// people that names their bound; false where the kernel does not report it.
func Available() (bytes int64, bound string, ok bool) {
	bytes, ok = machine("MemAvailable:") // without swapping, as the kernel estimates
	bound = "on this machine"
	if room, name, limited := groupAvailable(); limited && (!ok || room < bytes) {
		return room, "below the limit " + name, true
	}
	return bytes, bound, ok
}

// Limit returns how many bytes of memory this process could have if no other process had
// any: the machine's, or the least limit of a memory cgroup. It is false where the
// kernel does not report it.
func Limit() (int64, bool) {
	limit, ok := machine("MemTotal:")
	if l, limited := leastLimit("/sys/fs/cgroup", ownGroups()); limited && (!ok || l < limit) {
		return l, true
	}
	return limit, ok
}

// ownGroups returns the text that names the cgroups that this process is in; "" where there is none.
func ownGroups() string {
	own, _ := os.ReadFile("/proc/self/cgroup")
	return string(own)
}

// leastLimit returns the least limit of the cgroups that own names below root.
func leastLimit(root, own string) (least int64, found bool) {
	for dir, files := range groups(root, own) {
		if l, limited := files.bound(dir); limited && (!found || l < least) {
			least, found = l, true
		}
	}
	return least, found
}

// machine returns a field of /proc/meminfo, in bytes.
func machine(name string) (int64, bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	return parseMeminfo(f, name)
}

// parseMeminfo finds "name n kB", in bytes.
func parseMeminfo(r io.Reader, name string) (int64, bool) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if len(field) < 2 || field[0] != name {
			continue
		}
		kb, err := strconv.ParseInt(field[1], 10, 64)
		return kb * 1024, err == nil && kb >= 0 && kb < math.MaxInt64/1024
	}
	return 0, false
}

// groupAvailable returns the room below the tightest memory limit of the
// cgroups that this process is in, and that limit for people; false without one.
func groupAvailable() (int64, string, bool) { return tightest("/sys/fs/cgroup", ownGroups()) }

// tightest returns the least room below a limit, and that limit, of the cgroups that
// own names below root.
func tightest(root, own string) (room int64, name string, found bool) {
	for dir, files := range groups(root, own) {
		if r, n, ok := files.room(dir); ok && (!found || r < room) {
			room, name, found = r, n, true
		}
	}
	return room, name, found
}

// groups are the directories below root, where cgroups are mounted, of the
// cgroups that own, a /proc/self/cgroup, names: those of cgroup v2, and those of
// the memory controller of v1. Limits of parents count too. In a container a
// path may be the machine's, which is not visible there; then the mounted cgroup
// is the container's own.
func groups(root, own string) iter.Seq2[string, groupFiles] {
	return func(yield func(string, groupFiles) bool) {
		for line := range strings.Lines(own) {
			field := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(field) != 3 {
				continue
			}
			mount, files := "", v2
			switch {
			case field[1] == "":
				mount = root
			case slices.Contains(strings.Split(field[1], ","), "memory"):
				mount, files = path.Join(root, "memory"), v1
			default:
				continue
			}
			for p := path.Clean("/" + field[2]); ; p = path.Dir(p) {
				if !yield(path.Join(mount, p), files) {
					return
				}
				if p == "/" {
					break
				}
			}
		}
	}
}

// groupFiles are the names of one version of cgroups for the same things.
type groupFiles struct {
	limit, used string
	cache       string // in memory.stat: bytes that the kernel reclaims on demand
}

var (
	v2 = groupFiles{"memory.max", "memory.current", "inactive_file"}
	v1 = groupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

// room returns how many bytes are free below the limit of the cgroup at dir, if it has one.
func (g groupFiles) room(dir string) (int64, string, bool) {
	limit, ok := g.bound(dir)
	if !ok {
		return 0, "", false
	}
	used, ok := readNumber(path.Join(dir, g.used))
	if !ok {
		return 0, "", false
	}
	used -= min(g.reclaimable(dir), used)
	return max(limit-used, 0), fmt.Sprintf("%s of %d bytes", path.Join(dir, g.limit), limit), true
}

// bound returns the limit of the cgroup at dir, if it has one.
func (g groupFiles) bound(dir string) (int64, bool) {
	limit, ok := readNumber(path.Join(dir, g.limit))
	return limit, ok && limit < math.MaxInt64/2 // v1 has a huge number for no limit
}

// reclaimable returns how many of the used bytes are cache; 0 if that is unknown.
func (g groupFiles) reclaimable(dir string) int64 {
	stat, err := os.ReadFile(path.Join(dir, "memory.stat"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(stat)) {
		if text, ok := strings.CutPrefix(line, g.cache+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err == nil && n > 0 {
				return n
			}
		}
	}
	return 0
}

// readNumber reads a file that holds one number; "max" is none.
func readNumber(name string) (int64, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil && n >= 0
}
