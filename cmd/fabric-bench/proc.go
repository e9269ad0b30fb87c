package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// governor returns how the processors choose their clock rate; empty where the
// kernel does not say, as in most virtual machines.
func governor() string {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// switchesOf returns how often the threads of a process have given up their
// processor or lost it. Those of threads that have ended are lost.
func switchesOf(pid int) (sum int64, err error) {
	tasks, err := threads([]int{pid})
	if err != nil {
		return 0, err
	}
	for _, tid := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := parseSwitches(string(text))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// parseSwitches adds the two numbers of context switches in /proc/PID/status.
func parseSwitches(text string) (sum int64, err error) {
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name != "voluntary_ctxt_switches" && name != "nonvoluntary_ctxt_switches" {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/status: %w", err)
		}
		sum += n
		found++
	}
	if found != 2 {
		return 0, errors.New("/proc/PID/status has no context switches")
	}
	return sum, nil
}

// loadAverage returns how many threads wanted to run, averaged over a minute;
// absent where the kernel does not say.
func loadAverage() figure {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return absent
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return absent
	}
	return figure(v)
}

// threads returns the threads of processes, in order.
func threads(pids []int) ([]int, error) {
	var tids []int
	for _, pid := range pids {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				return nil, err
			}
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	return tids, nil
}
