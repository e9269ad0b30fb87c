package archtest

import (
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fabricd/fabricd"

// mayImport is the architecture: package → packages of ours that its non-test
// code may import. It is a statement of policy. Widen a line only together
// with ARCHITECTURE.md.
var mayImport = map[string][]string{
	// Leaves.
	"fabric/addr":            {},
	"internal/status":        {},
	"internal/ring":          {},
	"internal/spin":          {},
	"internal/guard":         {},
	"internal/admission":     {},
	"internal/logbound":      {},
	"internal/segment":       {},
	"internal/flight":        {"fabric/addr"},
	"internal/test/bubble":   {},
	"internal/test/budget":   {},
	"internal/yamlbound":     {},
	"internal/chart":         {},
	"internal/printable":     {},
	"internal/audit":         {"internal/printable"},
	"internal/shm":           {"internal/status"},
	"internal/rawio":         {},
	"internal/sockfile":      {},
	"internal/wait":          {},
	"internal/path":          {"internal/rawio"},
	"fence":                  {"internal/status"},
	"internal/test/archtest": {},

	// Arithmetic and formats.
	"portmap":        {"fabric/addr", "internal/status"},
	"rma":            {"internal/status"},
	"internal/codec": {"fabric/addr"},
	"internal/wire":  {"fabric/addr", "internal/status", "internal/codec"},

	// Rules: the permissions to connect and bind.
	"internal/access": {"fabric/addr"},

	// Membership: the parts, each below the agent that joins them.
	"membership/verdict":  {"fabric/addr"},
	"membership/services": {"fabric/addr"},
	"membership/trust":    {"fabric/addr", "internal/codec"},
	"membership/state":    {"fabric/addr", "internal/codec", "internal/faults/failpoint", "membership/verdict"},
	"membership/gossip":   {"internal/wait", "fabric/addr", "internal/codec", "internal/segment", "internal/guard", "internal/admission", "internal/logbound"},
	"membership/control":  {"internal/wait", "fabric/addr", "internal/codec", "internal/status", "internal/guard", "internal/admission", "internal/logbound", "membership/verdict", "membership/trust", "membership/services"},
	"membership": {"internal/wait", "fabric/addr", "internal/segment", "internal/status", "internal/guard", "internal/faults/failpoint",
		"membership/verdict", "membership/services", "membership/trust", "membership/state", "membership/gossip", "membership/control"},

	// The providers: each knows the contract, none knows another.
	"internal/transport":          {"internal/wait", "fabric/addr", "internal/status"},
	"internal/test/testca":        {"internal/transport", "fabric/addr"},
	"internal/test/transporttest": {"internal/transport", "internal/test/bubble", "fabric/addr"},
	"internal/transport/mem":      {"internal/wait", "internal/transport"},
	"internal/transport/network":  {"internal/transport", "internal/guard", "internal/admission", "internal/logbound"},
	"internal/transport/quic":     {"internal/wait", "internal/transport", "internal/transport/network", "internal/guard"},
	"internal/transport/stream":   {"internal/wait", "internal/codec", "internal/transport", "internal/transport/network", "internal/guard"},

	// The engine and its loops.
	"internal/core": {"portmap", "rma", "fence", "internal/wire", "fabric/addr", "internal/status"},
	"internal/engine": {"internal/wait", "internal/core", "internal/flight", "internal/guard", "internal/logbound", "internal/attach", "internal/path", "internal/transport", "internal/wire",
		"internal/transport/mem", // the link of a node to itself
		"internal/faults/failpoint", "portmap", "rma", "fence", "fabric/addr", "internal/status", "internal/access"},

	// The door, and the API in front of it.
	"internal/attach":        {"internal/wait", "fabric/addr", "internal/status", "internal/path", "rma", "fence", "internal/access"},
	"internal/attach/proto":  {"internal/attach", "internal/codec", "fabric/addr", "internal/status", "internal/path", "internal/shm", "internal/ring", "rma", "fence", "internal/access"},
	"internal/attach/client": {"internal/wait", "internal/attach", "internal/attach/proto", "fabric/addr", "internal/status", "internal/path", "internal/shm", "internal/ring", "internal/spin", "rma", "fence", "internal/access"},
	"internal/attach/server": {"internal/wait", "internal/attach", "internal/attach/proto", "fabric/addr", "internal/status", "internal/guard", "internal/logbound", "internal/shm", "internal/ring", "internal/faults/failpoint", "rma", "fence", "internal/access"},
	"internal/hook":          {"internal/attach"},
	"fabric":                 {"internal/wait", "internal/access", "internal/hook", "internal/attach", "internal/attach/client", "rma", "fence", "fabric/addr", "internal/status"},

	// The fault plane: the decisions, and their effect on the carriers; the
	// faults of one node, which every room may ask for.
	"internal/faults":           {"fabric/addr"},
	"internal/faults/inject":    {"internal/wait", "internal/faults", "internal/transport", "internal/wire", "fabric/addr"},
	"internal/faults/failpoint": {"internal/wait"},

	// The operators' view of one node: its problems, its metrics, its page.
	"internal/observe": {"internal/engine", "fabric/addr"},
	"internal/metrics": {"internal/observe", "internal/engine"},
	"internal/web":     {"internal/observe"},

	// The packages that join the rooms.
	"internal/daemon": {"internal/wait", "internal/sockfile", "internal/observe", "internal/metrics", "internal/web", "internal/audit", "internal/flight", "internal/guard", "internal/path", "internal/admission", "internal/logbound", "internal/engine", "membership", "membership/gossip", "membership/services", "membership/state", "membership/trust", "membership/verdict", "internal/attach", "internal/attach/server",
		"internal/transport", "internal/transport/network", "internal/transport/quic", "internal/transport/stream", "internal/faults", "internal/faults/inject", "internal/faults/failpoint",
		"internal/segment", "internal/ring", "internal/shm", "fabric/addr", "internal/status", "internal/yamlbound", "internal/printable", "internal/access", "internal/gateway/spec"},
	"internal/doctor":   {"internal/daemon", "internal/attach/server", "internal/path", "internal/shm", "internal/transport/quic", "membership/trust"},
	"fabric/embed":      {"internal/wait", "fabric", "internal/hook", "internal/attach/client", "internal/daemon", "fabric/addr"},
	"fabric/fabricgrpc": {"internal/wait", "fabric", "fabric/addr"},
	"fabric/fabrictest": {"internal/wait", "fabric", "internal/hook", "internal/engine", "internal/attach", "internal/attach/client", "internal/attach/server", "internal/transport", "internal/transport/mem",
		"internal/transport/network", "internal/transport/quic", "internal/transport/stream", "internal/faults", "internal/faults/inject", "internal/faults/failpoint", "internal/test/testca", "fabric/addr"},

	// Gateways of applications that know nothing of the fabric: an application too, which
	// cmd/fabricd gives to the daemon.
	"internal/gateway/spec": {"fabric/addr", "internal/access", "internal/attach"},
	"internal/gateway":      {"internal/wait", "internal/sockfile", "fabric", "fabric/addr", "internal/attach", "internal/hook", "internal/status", "internal/gateway/spec", "internal/guard", "internal/logbound", "internal/rawio"},

	// A file over a connection of any kind.
	"internal/filecopy": {},

	// A run that breaks things on purpose: its log, its file, its judge.
	"internal/lab/history":  {"fabric/addr"},
	"internal/lab/scenario": {"internal/lab/history", "internal/yamlbound", "internal/faults", "internal/faults/failpoint"},
	"internal/lab/load":     {"internal/lab/scenario", "internal/lab/history", "fabric/addr"},
	"internal/lab/check":    {"internal/lab/scenario", "internal/lab/history", "fabric/addr"},
	"internal/lab/report":   {"internal/chart", "internal/lab/check", "internal/lab/scenario", "internal/lab/history", "fabric/addr"},
	"internal/lab/sim": {"internal/core", "internal/wire", "internal/transport", "internal/status", "membership/verdict",
		"portmap", "rma", "fence", "fabric/addr", "internal/chart",
		"internal/lab/history", "internal/lab/load", "internal/lab/scenario", "internal/faults", "internal/faults/failpoint"},
	"internal/lab/sim/mutants": {},

	// The commands.
	"internal/lab/chaos/workload": {"internal/wait", "internal/lab/history", "internal/lab/load", "internal/daemon", "fabric"},
	"internal/lab/chaos": {"internal/wait", "internal/lab/chaos/workload", "internal/lab/load", "internal/lab/sim", "internal/lab/check", "internal/lab/report", "internal/lab/scenario", "internal/lab/history",
		"internal/daemon", "internal/faults", "internal/faults/failpoint", "fabric/addr"},
	"cmd/fabricd": {"internal/wait", "internal/attach/client", "internal/daemon", "internal/hook", "internal/doctor", "internal/gateway", "internal/gateway/spec", "internal/filecopy", "internal/printable", "internal/faults", "internal/lab/chaos", "internal/lab/chaos/workload", "internal/lab/report", "internal/lab/scenario", "internal/lab/sim",
		"fabric", "fabric/addr"},
	"cmd/fabric-bench":                {"fabric", "fabric/embed", "internal/chart", "cmd/fabric-bench/internal/tools"},
	"cmd/fabric-bench/internal/tools": {},

	// Programs for users to read first.
	"examples":          {},
	"examples/echo":     {"fabric"},
	"examples/http":     {"fabric"},
	"examples/grpc":     {"fabric", "fabric/fabricgrpc"},
	"examples/postgres": {"fabric"},
	"examples/rma":      {"fabric"},
	"examples/atomics":  {"fabric"},
	"examples/survive":  {"fabric"},
	"examples/embedded": {"fabric", "fabric/embed"},
	"examples/test":     {"fabric"},

	// Applications in containers, for users to copy.
	"deploy/apps/keeper":  {"fabric"},
	"deploy/apps/visitor": {"fabric"},

	// For tests only.
	"internal/test/netsim":       {"internal/wait", "fabric/addr"},
	"deploy/check":               {},
	"internal/test/deploytest":   {},
	"internal/test/e2e":          {},
	"internal/test/e2e/appsmoke": {},
	"internal/test/hostile":      {},
	"internal/test/pagetest":     {},
	"internal/test/conformance":  {"internal/wait", "fabric", "internal/hook", "fabric/addr", "fabric/embed", "fabric/fabrictest", "internal/status", "rma", "fence"},
}

// forTests are the packages that exist for tests. Only each other's non-test
// code, and the benchmark's, may import them; they may do all that tests may.
var forTests = []string{"internal/test/bubble", "internal/test/budget", "internal/test/testca", "internal/test/transporttest", "internal/test/netsim", "internal/test/conformance", "deploy/check", "internal/test/deploytest", "internal/test/e2e", "internal/test/e2e/appsmoke", "internal/test/hostile", "internal/test/pagetest", "fabric/fabrictest"}

func TestTestHelpersStayInTests(t *testing.T) {
	for p, imports := range mayImport {
		if slices.Contains(forTests, p) || p == "cmd/fabric-bench" {
			continue
		}
		for _, imported := range imports {
			if slices.Contains(forTests, imported) {
				t.Errorf("mayImport lets %s import %s, which is for tests", p, imported)
			}
		}
	}
}

// foreign lists modules that only one part of the tree may import.
var foreign = map[string][]string{
	// In the benchmark it is a baseline, which it measures without us.
	"github.com/quic-go/quic-go":      {"internal/transport/quic", "cmd/fabric-bench"},
	"github.com/libp2p/go-yamux/v5":   {"internal/transport/stream"},
	"github.com/hashicorp/memberlist": {"membership", "membership/gossip"},
	"go.etcd.io/bbolt":                {"membership/state"},
	"github.com/prometheus":           {"internal/metrics"},
	"github.com/spf13/cobra":          {"cmd/fabricd", "cmd/fabric-bench"},
	// An application that speaks neither links neither.
	"google.golang.org/grpc": {"fabric/fabricgrpc", "examples/grpc"},
	"github.com/lib/pq":      {"examples/postgres"},
	"golang.org/x/sys":       {"internal/shm", "internal/path", "internal/segment", "internal/lab/chaos", "cmd/fabric-bench"},
}

func TestImportsPointOneWay(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		allowed, known := mayImport[f.dir]
		if !known {
			t.Errorf("%s: package %s is not in mayImport", f.name, f.dir)
			continue
		}
		for _, imported := range f.imports() {
			if p, ours := strings.CutPrefix(imported, module+"/"); ours && !slices.Contains(allowed, p) {
				t.Errorf("%s: %s may not import %s", f.name, f.dir, p)
			}
		}
	}
}

func TestListHasNoCycle(t *testing.T) {
	var visit func(p string, path []string)
	visit = func(p string, path []string) {
		if slices.Contains(path, p) {
			t.Fatalf("mayImport allows a cycle: %s", strings.Join(append(path, p), " → "))
		}
		for _, next := range mayImport[p] {
			if _, known := mayImport[next]; !known {
				t.Errorf("mayImport lets %s import %s, which it does not know", p, next)
			}
			visit(next, append(path, p))
		}
	}
	for p := range mayImport {
		visit(p, nil)
	}
}

func TestForeignModulesStayInTheirPackages(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, imported := range f.imports() {
			for mod, rooms := range foreign {
				if !below(imported, mod) {
					continue
				}
				if !slices.ContainsFunc(rooms, func(room string) bool { return below(f.dir, room) }) {
					t.Errorf("%s: only %s may import %s", f.name, strings.Join(rooms, ", "), imported)
				}
			}
		}
	}
}

// below reports whether the slash-separated path p is root or lies under it.
func below(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}

// TestUnsafeIsQuarantined keeps unsafe to files that say so in their name.
func TestUnsafeIsQuarantined(t *testing.T) {
	for _, f := range sources(t) {
		named := strings.HasSuffix(strings.TrimSuffix(path.Base(f.name), "_test.go"), "_unsafe") ||
			strings.HasSuffix(f.name, "_unsafe.go")
		if slices.Contains(f.imports(), "unsafe") && !named {
			t.Errorf("%s: unsafe belongs in a file named *_unsafe.go", f.name)
		}
		if slices.Contains(f.imports(), "C") {
			t.Errorf("%s: cgo stays off", f.name)
		}
	}
}

// TestApplicationsLinkTheClientOnly follows the imports of an application: it has neither
// the node's end of the attach protocol nor anything of a node.
func TestApplicationsLinkTheClientOnly(t *testing.T) {
	imports := map[string][]string{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, imported := range f.imports() {
			if p, ours := strings.CutPrefix(imported, module+"/"); ours {
				imports[f.dir] = append(imports[f.dir], p)
			}
		}
	}
	way := map[string]string{"examples/echo": "examples/echo"} // by which each is reached
	for todo := []string{"examples/echo"}; len(todo) > 0; todo = todo[1:] {
		for _, p := range imports[todo[0]] {
			if way[p] == "" {
				way[p] = way[todo[0]] + " → " + p
				todo = append(todo, p)
			}
		}
	}
	if way["internal/attach/client"] == "" {
		t.Fatalf("examples/echo imports %v: the walk does not see the client", imports["examples/echo"])
	}
	for _, p := range []string{"internal/attach/server", "internal/faults/failpoint", "internal/engine", "internal/daemon", "internal/transport", "membership"} {
		if way[p] != "" {
			t.Errorf("an application links %s: %s", p, way[p])
		}
	}
}
