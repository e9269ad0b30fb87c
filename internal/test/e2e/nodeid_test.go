package e2e

import (
	"slices"
	"testing"
)

// A node has the ID that --node-id asks for, also behind a restart, or ends with a line
// that says why not.
func TestANodeIDCanBeAskedFor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	fixed := l.member(host, "fixed", "--node-id", "12")
	fixed.start()
	first := fixed.incarnation()
	if first.Node != 12 {
		t.Errorf("with --node-id 12 the node lives as %v", first)
	}
	l.member(host, "late", "--node-id", "12").refused(1, `node-id 12: the ID is taken by node "fixed"`)
	fixed.kill()
	fixed.start()
	if again := fixed.incarnation(); again.Node != 12 || again.Generation <= first.Generation {
		t.Errorf("restarted it lives as %v behind %v", again, first)
	}
	fixed.kill()
	fixed.args[slices.Index(fixed.args, "--node-id")+1] = "13"
	fixed.refused(1, "node-id 13: this node has the ID 12 and keeps it")
	l.prepare("second-host", "--role", "host", "--node-id", "12").refused(exitUsage, "node-id", "the host has the ID 0")
	l.agree(host)
}
