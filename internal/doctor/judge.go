package doctor

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/shm"
)

// A State is the severity of a finding.
type State string

const (
	OK   State = "ok"
	Note State = "note" // it works, and could work better
	Bad  State = "bad"  // it does not work
)

// A Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	State  State  `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

const (
	leastMemory      = 64 << 20 // an idle node uses at most 40 MiB
	goodMemory       = 512 << 20
	leastDescriptors = daemon.LeastDescriptors
	goodDescriptors  = 4096
	manyProcessors   = 4 // from here on readers busy-poll their sockets before they sleep
)

// Judge returns the findings about a machine for a node with the configuration c, in the order in
// which a node depends on them.
func Judge(c daemon.Config, f Facts) []Finding {
	var all []Finding
	for _, line := range f.Unknown {
		all = append(all, Finding{"environment", Note, line, "fabricd run --help lists them"})
	}
	all = append(all, kernel(f), sharedMemory(f), memory(f), descriptors(f), processors(f), hugePages(c, f))
	all = append(all, udp(f), offload(f), pathLock(c, f))
	for _, n := range f.Needs {
		all = append(all, need(n, f.Node))
	}
	all = append(all, joins(f)...)
	return append(all, node(f.Node)...)
}

// Healthy reports whether nothing is bad.
func Healthy(all []Finding) bool {
	return !slices.ContainsFunc(all, func(f Finding) bool { return f.State == Bad })
}

func kernel(f Facts) Finding {
	return Finding{"kernel", OK, cmp.Or(f.Kernel, "its release is unknown"), ""}
}

func sharedMemory(f Facts) Finding {
	if f.Sealed != nil {
		return Finding{"shared-memory", Bad, f.Sealed.Error(), "applications cannot attach: memory for windows is a sealed memfd (Linux 3.17)"}
	}
	found := "sealed memory can be made; neither /dev/shm nor its size has a part in it"
	if f.Ptrace != "" {
		found += fmt.Sprintf(", nor has kernel.yama.ptrace_scope, which is %s", f.Ptrace)
	}
	return Finding{"shared-memory", OK, found, ""}
}

func memory(f Facts) Finding {
	x := Finding{"memory", OK, fmt.Sprintf("%d MiB are available %s", f.Memory>>20, f.Bound),
		"raise the limit, or free some: windows and shared-memory paths take it too (--plan)"}
	return graded(x, f.Memory >= 0, uint64(f.Memory), leastMemory, goodMemory)
}

func descriptors(f Facts) Finding {
	x := Finding{"descriptors", OK, fmt.Sprintf("a process may have %d", f.Descriptors),
		"ulimit -n, LimitNOFILE= of systemd, or ulimits of compose: each connection of an attached application takes one"}
	return graded(x, f.Descriptors > 0, f.Descriptors, leastDescriptors, goodDescriptors)
}

// graded returns f with the state for an amount have, of which a node needs least and should have
// good. An unknown amount is reported as unknown.
func graded(f Finding, known bool, have, least, good uint64) Finding {
	switch {
	case !known:
		f.Found, f.Remedy = "how much there is, is unknown", ""
	case have < least:
		f.State = Bad
	case have < good:
		f.State = Note
	default:
		f.Remedy = ""
	}
	return f
}

func processors(f Facts) Finding {
	found := fmt.Sprintf("%d for this process", f.Processors)
	if f.Processors < manyProcessors {
		return Finding{"processors", Note, found + ": a waiting call sleeps at once",
			fmt.Sprintf("from %d on readers watch their sockets for a while, which saves a wake-up for each message", manyProcessors)}
	}
	return Finding{"processors", OK, found, ""}
}

func hugePages(c daemon.Config, f Facts) Finding {
	want := c.Local.HugePages
	switch {
	case want == shm.HugeOff:
		return Finding{"huge-pages", OK, "not asked for", ""}
	case f.HugeFailed == nil:
		return Finding{"huge-pages", OK, fmt.Sprintf("shared-memory paths can have pages of %d KiB", f.HugePage>>10), ""}
	case want == shm.HugeTry:
		return Finding{"huge-pages", Note, f.HugeFailed.Error(), "shared-memory paths have small pages meanwhile; docs/rings.md"}
	}
	return Finding{"huge-pages", Bad, f.HugeFailed.Error(), "ring-huge-pages=try takes small pages where there are none; docs/rings.md"}
}

func udp(f Facts) Finding {
	switch {
	case f.UDPFailed != nil:
		return Finding{"udp-buffers", Bad, f.UDPFailed.Error(), "links over quic and gossip need UDP"}
	case f.UDPBuffers != "":
		found, remedy, _ := strings.Cut(f.UDPBuffers, "; ")
		return Finding{"udp-buffers", Note, found, remedy + " (docs/sysctl.md)"}
	}
	return Finding{"udp-buffers", OK, "as large as a fast link needs", ""}
}

func offload(f Facts) Finding {
	switch {
	case f.UDPFailed != nil:
		return Finding{"udp-offload", Note, "not looked at", ""}
	case f.Send && f.Merge:
		return Finding{"udp-offload", OK, "many packets go in one call, and come in one (UDP_SEGMENT, UDP_GRO)", ""}
	}
	return Finding{"udp-offload", Note, fmt.Sprintf("UDP_SEGMENT %s, UDP_GRO %s", yes(f.Send), yes(f.Merge)),
		"links over quic take more processor time: Linux 5.0 has both; --providers tcp,quic prefers TCP"}
}

// pathLock checks the socket filter that binds a path's socket to its peer.
func pathLock(c daemon.Config, f Facts) Finding {
	switch none := c.NoPaths(); {
	case none != "":
		return Finding{"path-lock", OK, "not needed: " + none, ""}
	case f.LockFailed != nil:
		return Finding{"path-lock", Note, "sockets cannot be locked: " + f.LockFailed.Error(), "connections to other nodes stay on their links"}
	case !f.Locked:
		return Finding{"path-lock", Note, "this kernel lets only processes with CAP_NET_ADMIN lock a path's socket to its peer: applications get theirs unlocked",
			"a hostile application can connect one to whatever fabricd reaches: give fabricd CAP_NET_ADMIN, or set --paths off (docs/threats.md)"}
	}
	return Finding{"path-lock", OK, "a path's socket can be locked to its peer by a filter", ""}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// need checks a resource that a node needs to start. A resource that the running node holds is
// fine.
func need(n daemon.Need, running Node) Finding {
	switch {
	case n.Err == nil:
		return Finding{n.Setting, OK, n.Value, ""}
	case n.Spare:
		return Finding{n.Setting, Note, n.Err.Error(), "a node that has joined does without it; a new one does not"}
	case n.Taken && running.Runs && has(running.Status, n):
		return Finding{n.Setting, OK, fmt.Sprintf("%s, which the fabricd that runs has (process %d)", n.Value, running.Status.PID), ""}
	}
	return Finding{n.Setting, Bad, n.Err.Error(), "a node with this setting does not start: --" + n.Setting}
}

// has reports whether the node with this status holds the resource.
func has(s daemon.Status, n daemon.Need) bool {
	switch n.Setting {
	case "data-port":
		return slices.ContainsFunc(s.Data, func(a string) bool { return portOf(a) == n.Value })
	case "gossip-port":
		return portOf(s.Gossip) == n.Value
	case "socket":
		return s.Socket == n.Value
	case "admin":
		return s.Admin == n.Value
	}
	return false
}

func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

// joins checks the members that a node is to join. One answer suffices.
func joins(f Facts) (all []Finding) {
	answered := slices.ContainsFunc(f.Joins, func(j Join) bool { return j.Err == nil })
	for _, j := range f.Joins {
		switch {
		case j.Err == nil:
			all = append(all, Finding{"join", OK, fmt.Sprintf("%s answers on TCP after %v", j.Address, j.Took.Round(10*time.Microsecond)), ""})
		case answered:
			all = append(all, Finding{"join", Note, j.Err.Error(), "another one answers, which is enough"})
		default:
			all = append(all, Finding{"join", Bad, j.Err.Error(), "is fabricd running there, is this its data port (7700, not that of gossip), and is it open for UDP and TCP?"})
		}
	}
	return all
}

// node checks the node that runs here.
func node(n Node) []Finding {
	if !n.Runs {
		return []Finding{{"node", OK, "none runs here, or none that answers this user", ""}}
	}
	var all []Finding
	who := fmt.Sprintf("%s, node %d, version %s", n.Status.Name, n.Status.ID, n.Status.Version)
	if n.Health.Healthy {
		all = append(all, Finding{"node", OK, who + ": " + n.Health.Detail, ""})
	} else {
		all = append(all, Finding{"node", Bad, who + ": " + n.Health.Detail, "its log has the details"})
	}
	for _, u := range n.Status.Unavailable {
		all = append(all, Finding{"provider " + u.Provider, Note, u.Reason, "links have the other provider meanwhile"})
	}
	if n.Status.Rings.Small != "" {
		all = append(all, Finding{"shm-paths", Note, n.Status.Rings.Small, "docs/rings.md"})
	}
	for _, w := range n.Status.Warnings {
		all = append(all, Finding{"faults", Note, w, "fabricd faults clear"})
	}
	return all
}
