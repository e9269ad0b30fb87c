package chaos

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestWhichFaultsTheDaemonsDoThemselves: faults by the kernel, or by a signal, need no
// --enable-faults.
func TestWhichFaultsTheDaemonsDoThemselves(t *testing.T) {
	real := strings.Replace(head, "sim, local, netns, compose", "local, netns", 1)
	sites := map[string]site{"local": &machine{}, "netns": &namespaces{}}
	for _, tt := range []struct {
		step         string
		local, netns bool
	}{
		{"node: {id: 1, do: kill, for: 1s}", false, false},
		{"node: {id: 1, do: stop, for: 1s}", false, false},
		{"app: {node: 1, do: stop, for: 1s}", false, false},
		{"cpu: {node: 1, hogs: 2, for: 1s}", false, false},
		{"fault: {node: 1, kind: descriptors, free: 3, for: 1s}", false, false},
		{"network: {node: 1, do: garbage, for: 1s}", false, false},
		{"rotate: {what: keys}", false, false},
		{"link: {from: 1, to: 2, drop: 5%, for: 1s}", true, false},
		{"link: {from: 1, to: 2, rate: 1MB/s, for: 1s}", true, false},
		{"partition: {groups: [[0, 1], others], for: 1s}", true, false},
		{"link: {from: 1, to: 2, delay: 5ms, for: 1s}", true, true},
		{"fault: {node: 1, kind: crash}", true, true},
		{"fault: {node: 1, kind: disk, disk: full, for: 1s}", true, true},
	} {
		s := decode(t, real+"timeline: [{at: 1s, "+tt.step+"}]\n").Resolve(1)
		for lab, want := range map[string]bool{"local": tt.local, "netns": tt.netns} {
			if got := needsFaults(sites[lab], s); got != want {
				t.Errorf("%s on %s: needs --enable-faults: %v, want %v", tt.step, lab, got, want)
			}
		}
	}
}

func TestPathsAreCountedOnce(t *testing.T) {
	conns := []pathConn{
		{Local: "1:2000", Remote: "2:3000", Path: "path", Socket: &pathSocket{"a:1", "b:2"}},
		{Local: "1:2001", Remote: "2:3000", Path: "socket", Socket: &pathSocket{"a:3", "b:4"}}, // being made
		{Local: "1:2002", Remote: "2:3000", Path: "socket"},
		{Local: "1:2003", Remote: "1:3000", Path: "channel"},
	}
	seen := map[string]bool{}
	if got, want := countPaths(conns, seen), (history.Paths{Conns: 3, Paths: 1, New: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := countPaths(conns, seen), (history.Paths{Conns: 3, Paths: 1}); got != want {
		t.Errorf("the second time: %+v, want %+v", got, want)
	}
}

func TestFirstBeyondTheDescriptors(t *testing.T) {
	for free := range 3 {
		n, err := firstBeyond(os.Getpid(), free)
		more, err2 := firstBeyond(os.Getpid(), free+8)
		if err != nil || err2 != nil || more < n+4 { // other tests open and close some
			t.Errorf("%d free below %d, and %d below %d: %v, %v", free, n, free+8, more, err, err2)
		}
	}
}

// TestRulesOfPaths: only the packets of a path's socket are met.
func TestRulesOfPaths(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.77.0.2:41000"), netip.MustParseAddrPort("10.77.0.3:7700")
	const match = "ip saddr 10.77.0.2 tcp sport 41000 ip daddr 10.77.0.3 tcp dport 7700 "
	for do, want := range map[scenario.PathDo]string{
		scenario.PathCut: "counter drop", scenario.PathOneWay: "counter drop",
		scenario.PathFull: "meta length > 600 counter drop", scenario.PathReset: "counter reject with tcp reset",
	} {
		if got := pathRule(do, from, to); got != match+want {
			t.Errorf("%s: %q, want %q", do, got, match+want)
		}
	}
	found, err := pathsAmong([]pathConn{
		{Path: "path", Socket: &pathSocket{"[::ffff:10.77.0.2]:41000", "10.77.0.3:7700"}},
		{Path: "path", Socket: &pathSocket{"10.77.0.2:41001", "10.77.0.4:7700"}, RMASocket: &pathSocket{"10.77.0.2:41002", "10.77.0.4:7700"}}, // to another node
		{Path: "socket", RMASocket: &pathSocket{"10.77.0.2:7700", "10.77.0.3:41003"}},
		{Path: "socket"},
	}, 1, 2, to.Addr())
	rma := pathEnds{1, 2, netip.MustParseAddrPort("10.77.0.2:7700"), netip.MustParseAddrPort("10.77.0.3:41003")}
	if err != nil || !slices.Equal(found.messages, []pathEnds{{1, 2, from, to}}) || !slices.Equal(found.rma, []pathEnds{rma}) {
		t.Errorf("found %v, %v", found, err)
	}
	if found, err := pathsAmong([]pathConn{{Socket: &pathSocket{"10.77.0.2", "10.77.0.3:7700"}}}, 1, 2, to.Addr()); err == nil {
		t.Errorf("no address: found %v", found)
	}
}
