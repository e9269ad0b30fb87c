package chaos

import (
	"bytes"
	"fmt"
	"os"
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
