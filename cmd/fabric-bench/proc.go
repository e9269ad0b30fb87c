package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// governor returns the policy for the processors' clock rate; empty if the kernel does not report
// it, as in most virtual machines.
func governor() string {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// loadAverage returns the number of runnable threads, averaged over a minute; absent if the kernel
// does not report it.
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

// openFiles returns the number of descriptors of a process.
func openFiles(pid int) (int, error) {
	all, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	return len(all), err
}

// clockTick is the unit of the times in /proc/PID/stat: user space sees a hundredth of
// a second on every architecture.
const clockTick = 10 * time.Millisecond

// cpuTime returns the user and system time of a process and its threads so far.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(text))
}

// parseStat reads utime and stime, the 14th and 15th field, of /proc/PID/stat. The
// second, in parentheses, may contain anything.
func parseStat(text string) (time.Duration, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields behind the name", len(fields))
	}
	user, err1 := strconv.ParseUint(fields[11], 10, 63)
	system, err2 := strconv.ParseUint(fields[12], 10, 63)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// residentBytes returns the resident set of a process.
func residentBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, errors.New("/proc/PID/statm is short")
	}
	pages, err := strconv.ParseInt(fields[1], 10, 63)
	return pages * int64(os.Getpagesize()), err
}
