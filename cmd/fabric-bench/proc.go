package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// runTime returns how long the threads that a process has now were running, to
// the nanosecond where the kernel tells, otherwise to the hundredth of a second.
func runTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return cpuTime(pid)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return cpuTime(pid)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// governor returns how the processors choose their clock rate; empty where the
// kernel does not say, as in most virtual machines.
func governor() string {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
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
