package workload

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Held counts the resources of a process, by its number or "self", under the names of
// [history.ResourceNames]: descriptors, those of shared memory among them, its mappings,
// and resident memory. A resource that cannot be read is left out.
func Held(pid string) map[string]int64 {
	held := map[string]int64{}
	dir := filepath.Join("/proc", pid)
	if entries, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		held["fds"], held["memfds"] = 0, 0
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
			if err != nil {
				continue // closed meanwhile, as the directory that was just read
			}
			held["fds"]++
			if strings.HasPrefix(target, "/memfd:") {
				held["memfds"]++
			}
		}
	}
	if maps, err := os.ReadFile(filepath.Join(dir, "maps")); err == nil {
		held["maps"] = int64(bytes.Count(maps, []byte("/memfd:")))
	}
	if statm, err := os.ReadFile(filepath.Join(dir, "statm")); err == nil {
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				held["rss"] = pages * int64(os.Getpagesize())
			}
		}
	}
	return held
}
