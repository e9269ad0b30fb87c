package scenario_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// outsideContainers are the scenarios that do not run in containers, by the reason.
// Those of long/ never do: their time is for virtual time and processes.
var outsideContainers = []struct {
	why   string
	names []string
}{
	{"the fault is within fabricd, or between it and its sockets, and the same process meets it in `local`: a container adds its own seconds and nothing else",
		[]string{"clock-jump", "connect-races", "corruption", "delay-reorder-duplicate", "descriptors-exhausted", "disk-full-at-join", "fence-crash-at-step",
			"held-reset-half-open", "keys-rotated", "narrow-link", "narrow-wire", "others-wait-no-longer"}},
	{"the same fault runs there in other files, as node-killed, app-killed, pair-cut, split-healed and memory-bounded: what differs is what the nodes make of it",
		[]string{"fence-cut", "flood", "pair-evicted", "split-one-way", "split-one-way-fast", "star-only", "window-races"}},
	{"the lab has nothing to do it with: it forges no ICMP and sends no garbage on a network of Docker's, and starts no second host and changes no bit in a container's place",
		[]string{"icmp-forged", "icmp-unreachable", "state-damaged", "strangers", "two-hosts"}},
	{"the packets of paths are distinguished from others in namespaces alone, where the lab makes the network; and what becomes of applications and descriptors there is the same in `local`",
		[]string{"app-killed-going-over", "app-stopped-going-over", "path-cut", "path-cut-briefly", "path-cut-one-way", "path-cut-rma", "path-mtu-black-hole", "path-reset",
			"paths-opened-and-closed", "paths-without-descriptors"}},
	{"what is measured is a whole machine that is busy, and one lab is enough for it; cpu-busy and cpu-starved run there",
		[]string{"flapping-busy", "node-paused-busy"}},
	{"it takes more nodes, or more time, than a suite of containers has",
		[]string{"certificates-renewed-once", "join-storm", "split-minute"}},
}

// containerTable is the part of the README that says why scenarios do not run in
// containers: each of them once.
func containerTable(t *testing.T) string {
	var without []string
	for path, s := range files(t) {
		if !slices.Contains(s.On, scenario.Compose) && filepath.Dir(path) != "long" {
			without = append(without, string(s.Name))
		}
	}
	var named []string
	var b strings.Builder
	b.WriteString("| not in containers | why |\n|---|---|\n")
	for _, group := range outsideContainers {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(group.names, ", "), group.why)
		named = append(named, group.names...)
	}
	slices.Sort(without)
	slices.Sort(named)
	if !slices.Equal(without, named) {
		t.Errorf("the scenarios that do not run in containers are\n%q, and reasons are given for\n%q", without, named)
	}
	return b.String()
}
