package check_test

import (
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestARunThatNeverUsedAPathIsSeen: where daemons run without --enable-faults, a
// connection that is used goes over to a path.
func TestARunThatNeverUsedAPathIsSeen(t *testing.T) {
	const second = 1_000_000_000
	run := func(paths string, remote addr.NodeID, bytes int64, over ...history.Paths) (check.Judgement, int) {
		client := history.ConnEnd{Conn: 9, Side: history.Client}
		local := addr.Incarnation{Node: 1, Generation: 1}
		records := []history.Record{
			{Source: history.Lab, Seq: 1, Body: &history.Begin{Version: history.Version, Detection: "fast", Lab: "netns", Paths: paths}},
			{At: 1, Source: history.App(1, 1), Seq: 1, Body: &history.Opened{ConnEnd: client, Local: local, Remote: addr.Incarnation{Node: remote, Generation: 1}}},
			{At: second, Source: history.App(1, 1), Seq: 2, Body: &history.Sent{ConnEnd: client, Range: history.Range{To: bytes}}},
		}
		for i := range over {
			records = append(records, history.Record{At: 2 * second, Source: history.Lab, Seq: uint64(i) + 2, Body: &over[i]})
		}
		records = append(records, history.Record{At: 6 * second, Source: history.App(1, 1), Seq: 3,
			Body: &history.Sent{ConnEnd: client, Range: history.Range{From: bytes, To: 2 * bytes}}})
		r := check.Run(records, nil)
		j, _ := r.Invariant("paths")
		return j, r.Paths
	}
	const much, little = 1 << 20, 1 << 10
	at := func(node, paths int) history.Paths {
		return history.Paths{Target: history.Daemon(node, 1), Conns: 2, Paths: paths, New: paths}
	}
	for _, tt := range []struct {
		name   string
		paths  string
		remote addr.NodeID
		bytes  int64
		over   []history.Paths
		want   check.Verdict
		count  int
	}{
		{"one path, seen at both ends", "lazy", 2, much, []history.Paths{at(1, 1), at(2, 1)}, check.Held, 1},
		{"none", "lazy", 2, much, []history.Paths{at(1, 0)}, check.Violated, 0},
		{"nobody looked", "lazy", 2, much, nil, check.Violated, 0},
		{"little was sent", "lazy", 2, little, nil, check.NotExercised, 0},
		{"on one node", "lazy", 1, much, nil, check.NotExercised, 0},
		{"with --enable-faults", "off", 2, much, nil, check.NotExercised, 0},
		{"simulated", "", 2, much, nil, check.NotExercised, 0},
	} {
		if j, n := run(tt.paths, tt.remote, tt.bytes, tt.over...); j.Verdict != tt.want || n != tt.count {
			t.Errorf("%s: %s and %d paths, want %s and %d", tt.name, j.Verdict, n, tt.want, tt.count)
		}
	}
}
