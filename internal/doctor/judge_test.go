package doctor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/shm"
)

// well returns the facts of a machine without a fault.
func well() Facts {
	return Facts{
		Kernel: "6.1.0", Processors: 8, Descriptors: 1 << 20, Memory: 8 << 30, Bound: "on this machine", Ptrace: "1",
		HugePage: 2 << 20, Send: true, Merge: true, Locked: true,
		Needs: []daemon.Need{{Setting: "data-port", Value: "7700"}},
	}
}

// running is the node that a taken port may belong to.
func running(ports ...string) Node {
	n := Node{Runs: true, Status: daemon.Status{PID: 5, Gossip: "10.0.0.1:7701", Socket: "/s", Admin: "/a"}, Health: daemon.Health{Healthy: true}}
	for _, p := range ports {
		n.Status.Data = append(n.Status.Data, "10.0.0.1:"+p)
	}
	return n
}

func TestJudge(t *testing.T) {
	refused := errors.New("connection refused")
	taken := daemon.Need{Setting: "data-port", Value: "7700", Err: errors.New("is taken"), Taken: true}
	huge := daemon.Default()
	huge.Local.HugePages = shm.HugeTry
	required := daemon.Default()
	required.Local.HugePages = shm.HugeRequire
	linked := daemon.Default()
	linked.Paths = "off"
	for _, tt := range []struct {
		name   string
		config daemon.Config
		change func(*Facts)
		want   string // "check state", those that are not ok
	}{
		{"nothing is wrong", daemon.Default(), func(*Facts) {}, ""},
		{"little is known", daemon.Default(), func(f *Facts) {
			f.Kernel, f.Descriptors, f.Memory, f.Ptrace = "", 0, -1, ""
		}, ""},
		{"no sealed memory", daemon.Default(), func(f *Facts) { f.Sealed = errors.New("function not implemented") }, "shared-memory bad"},
		{"little memory", daemon.Default(), func(f *Facts) { f.Memory = 300 << 20 }, "memory note"},
		{"none left", daemon.Default(), func(f *Facts) { f.Memory = 0 }, "memory bad"},
		{"no memory", daemon.Default(), func(f *Facts) { f.Memory = 40 << 20 }, "memory bad"},
		{"few descriptors", daemon.Default(), func(f *Facts) { f.Descriptors = 1024 }, "descriptors note"},
		{"no descriptors", daemon.Default(), func(f *Facts) { f.Descriptors = 64 }, "descriptors bad"},
		{"two processors", daemon.Default(), func(f *Facts) { f.Processors = 2 }, "processors note"},
		{"no huge pages, which nobody wants", daemon.Default(), func(f *Facts) { f.HugeFailed = errors.New("too few") }, ""},
		{"huge pages", huge, func(*Facts) {}, ""},
		{"no huge pages to try", huge, func(f *Facts) { f.HugeFailed = errors.New("too few") }, "huge-pages note"},
		{"no huge pages, which are required", required, func(f *Facts) { f.HugeFailed = errors.New("too few") }, "huge-pages bad"},
		{"no UDP", daemon.Default(), func(f *Facts) { f.UDPFailed = errors.New("not supported"); f.Send = false },
			"udp-buffers bad, udp-offload note"},
		{"small buffers", daemon.Default(), func(f *Facts) { f.UDPBuffers = "UDP buffers are 208 KiB; set net.core.rmem_max" }, "udp-buffers note"},
		{"no offload", daemon.Default(), func(f *Facts) { f.Merge = false }, "udp-offload note"},
		{"sockets stay unlocked", daemon.Default(), func(f *Facts) { f.Locked = false }, "path-lock note"},
		{"sockets stay unlocked, and none is needed", linked, func(f *Facts) { f.Locked = false }, ""},
		{"sockets cannot be locked", daemon.Default(), func(f *Facts) { f.Locked, f.LockFailed = false, errors.New("not supported") }, "path-lock note"},
		{"a port is taken", daemon.Default(), func(f *Facts) { f.Needs = []daemon.Need{taken} }, "data-port bad"},
		{"by the node that runs", daemon.Default(), func(f *Facts) { f.Needs, f.Node = []daemon.Need{taken}, running("7700") }, ""},
		{"by another than the node that runs", daemon.Default(), func(f *Facts) { f.Needs, f.Node = []daemon.Need{taken}, running("7710") }, "data-port bad"},
		{"a directory cannot be written, beside a node", daemon.Default(), func(f *Facts) {
			f.Needs, f.Node = []daemon.Need{{Setting: "state-dir", Value: "/x", Err: errors.New("read-only")}}, running("7700")
		}, "state-dir bad"},
		{"a token that is gone, of a member", daemon.Default(), func(f *Facts) {
			f.Needs = []daemon.Need{{Setting: "token-file", Value: "/t", Err: errors.New("no such file"), Spare: true}}
		}, "token-file note"},
		{"members answer", daemon.Default(), func(f *Facts) { f.Joins = []Join{{"a:1", time.Millisecond, nil}} }, ""},
		{"one member answers", daemon.Default(), func(f *Facts) { f.Joins = []Join{{"a:1", 0, refused}, {"b:1", 0, nil}} }, "join note"},
		{"no member answers", daemon.Default(), func(f *Facts) { f.Joins = []Join{{"a:1", 0, refused}, {"b:1", 0, refused}} }, "join bad, join bad"},
		{"a mistyped variable", daemon.Default(), func(f *Facts) { f.Unknown = []string{"FABRIC_TYPO is set"} }, "environment note"},
		{"a node that is not well", daemon.Default(), func(f *Facts) { f.Node = running("7700"); f.Node.Health = daemon.Health{Detail: "joining"} }, "node bad"},
		{"a node that has less than it could", daemon.Default(), func(f *Facts) {
			f.Node = running("7700")
			f.Node.Status.Unavailable = []daemon.Unavailable{{Provider: "quic", Reason: "no UDP"}}
			f.Node.Status.Rings.Small = "too few pages"
			f.Node.Status.Warnings = []string{"its clock is wrong on purpose"}
		}, "provider quic note, shm-paths note, faults note"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := well()
			tt.change(&f)
			all := Judge(tt.config, f)
			var got []string
			for _, x := range all {
				if x.State != OK {
					got = append(got, x.Check+" "+string(x.State))
				}
				if x.Check == "" || x.Found == "" && x.Check != "node" || (x.State == Bad && x.Remedy == "") {
					t.Errorf("%+v says too little", x)
				}
			}
			if s := strings.Join(got, ", "); s != tt.want {
				t.Errorf("judged %q, want %q: %+v", s, tt.want, all)
			}
			if Healthy(all) == strings.Contains(tt.want, " bad") {
				t.Errorf("healthy: %v", Healthy(all))
			}
		})
	}
}

func TestPlanFor(t *testing.T) {
	costs := daemon.Costs{ShmPath: 1000, Ends: 128, UserEnds: 256, Unread: 100, Fit: 129, Descriptors: 1, Attached: 1, Path: 1, UserFiles: 130, UserPaths: 129}
	p := PlanFor(129, costs, Facts{Memory: 129_000, Descriptors: 300})
	if p.ShmPaths != 129_000 || p.Fit != 129 || p.Applications != 3 || p.Users != 2 || p.Inside != 261 || p.Outside != 259 || len(p.Lacks) != 0 {
		t.Errorf("%+v", p)
	}
	costs.Fit, costs.UserFiles, costs.UserPaths = 128, 129, 128
	p = PlanFor(129, costs, Facts{Memory: 12_899, Descriptors: 129})
	want := []string{"bytes for shared-memory paths: 129000 are needed, 12899 are there", "connections between nodes of one application, by conn-memory: 129 are needed, 128 are there",
		"descriptors within the node: 261 are needed, 129 are there", "descriptors for connections to other nodes: 259 are needed, 129 are there",
		"descriptors of one user for connections to other nodes: 130 are needed, 129 are there", "paths of one user: 129 are needed, 128 are there"}
	if fmt.Sprint(p.Lacks) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", p.Lacks, want)
	}
	if p := PlanFor(1, costs, Facts{Memory: 0, Descriptors: 9}); len(p.Lacks) != 1 || p.Applications != 2 {
		t.Errorf("where nothing is left: %+v", p)
	}
	off := daemon.Default()
	off.Paths = "off"
	if p := PlanFor(10, daemon.CostsOf(off), Facts{Memory: -1}); p.Outside != 11 {
		t.Errorf("without paths: %+v", p)
	}
	costs = daemon.CostsOf(daemon.Default())
	if p := PlanFor(min(MaxPlan, costs.Fit, costs.UserPaths, costs.UserFiles-costs.Attached), costs, Facts{Memory: -1}); len(p.Lacks) != 0 || p.ShmPaths <= 0 || p.Fit < 100 {
		t.Errorf("where nothing is known: %+v", p)
	}
}
