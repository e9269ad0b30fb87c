package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set at build time; if empty, the build information is used.
var version string

// revision returns the version of this program.
func revision() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return rev + dirty
}

// cpuModel returns the processor's name, or its architecture.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// kernelRelease returns the kernel's release, or the system's name.
func kernelRelease() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(text))
}

// A Machine describes the machine of a run.
type Machine struct {
	Host     string `json:"host"`
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`      // available to this process
	Threads  int    `json:"gomaxprocs"` // used by this process
	Governor string `json:"governor"`   // of the clock rate; empty: unknown
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Load     figure `json:"load_average"` // of the last minute, at the start of the run
}

// describeMachine describes this machine.
func describeMachine() Machine {
	m := Machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Threads: runtime.GOMAXPROCS(0), Governor: governor(),
		Kernel: kernelRelease(), Go: runtime.Version(), Load: loadAverage()}
	m.Host, _ = os.Hostname() // without one it is empty
	return m
}

func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)
	if m.Governor != "" {
		s += ", governor " + m.Governor
	}
	s += fmt.Sprintf(" · Linux %s · %s", m.Kernel, m.Go)
	if m.Load.measured() {
		s += fmt.Sprintf(" · load %v as it began", m.Load)
	}
	return s
}
