package chaos

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// stateOf returns the state letter of process pid, "" if there is none.
func stateOf(pid int) string {
	fields := statFields(pid)
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// startOf returns when process pid was started, in ticks since the machine
// booted; "" if there is none. With the number it names a process for ever.
func startOf(pid int) string {
	fields := statFields(pid)
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// statFields returns /proc/PID/stat from the third field on.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The name may hold spaces and parentheses.
	i := bytes.LastIndex(b, []byte(") "))
	if i < 0 {
		return nil
	}
	return strings.Fields(string(b[i+2:]))
}

// cpuOf returns how much processor time pid has used.
func cpuOf(pid int) (time.Duration, error) {
	fields := statFields(pid)
	if len(fields) < 13 {
		return 0, fmt.Errorf("no process %d", pid)
	}
	var ticks int
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on every Linux
}

// Usage is the resources that a process holds.
type Usage struct {
	FDs    int   // open descriptors
	MemFDs int   // of those, shared memory
	Maps   int   // mappings of shared memory
	RSS    int64 // resident memory in bytes
}

// usageOf looks at process pid.
func usageOf(pid int) (Usage, error) {
	var u Usage
	dir := fmt.Sprintf("/proc/%d", pid)
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return u, err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		u.FDs++
		if strings.HasPrefix(target, "/memfd:") {
			u.MemFDs++
		}
	}
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return u, err
	}
	u.Maps = bytes.Count(maps, []byte("/memfd:"))
	statm, err := os.ReadFile(filepath.Join(dir, "statm"))
	if err != nil {
		return u, err
	}
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return u, err
		}
		u.RSS = pages * int64(os.Getpagesize())
	}
	return u, nil
}
