package main

import (
	"os"
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
