package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestDoctorKnowsTheNodeAndWhatConnectionsTake asks for a diagnosis beside a node
// that runs, and compares its plan with the descriptors that so many connections
// take indeed.
func TestDoctorKnowsTheNodeAndWhatConnectionsTake(t *testing.T) {
	t.Parallel()
	const conns = 20
	l := newLab(t)
	host := l.cluster(0)[0]
	flags := []string{"doctor", "--bind", l.ip, "--data-port", fmt.Sprint(host.data), "--gossip-port", gossipPort(t, host),
		"--socket", host.socket(), "--admin", host.adminSocket(), "--state-dir", host.stateDir(), "--plan", fmt.Sprint(conns)}
	before := countDescriptors(t, host)
	text, err := l.fabricd(flags...)
	if err != nil || strings.Count(text, "which the fabricd that runs has") != 4 || !strings.Contains(text, "20 connections to other nodes") {
		t.Errorf("beside the node that has all of it: %v\n%s", err, text)
	}
	text, err = l.fabricd(append(flags, "--admin", host.adminSocket()+"2", "--json")...)
	var d struct {
		Healthy  bool
		Findings []struct{ Check, State string }
		Plan     struct {
			Inside int `json:"descriptors_within_node"`
		}
	}
	if err == nil || json.Unmarshal([]byte(text), &d) != nil || d.Healthy || strings.Count(text, `"state":"bad"`) != 3 {
		t.Errorf("where somebody else has the ports and the socket: %v\n%s", err, text)
	}

	ctx := within(t, stepLimit)
	here, there := host.attach(), host.attach()
	listener, err := there.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	for range conns {
		dialed := make(chan error, 1)
		go func() { // one answer
			_, err := here.DialAddr(ctx, listener.Addr().(fabric.Addr))
			dialed <- err
		}()
		if _, err := listener.AcceptConn(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-dialed; err != nil {
			t.Fatal(err)
		}
	}
	// The listener has one, too.
	if got := countDescriptors(t, host) - before; got < d.Plan.Inside || got > d.Plan.Inside+4 {
		t.Errorf("%d connections take %d descriptors, planned were %d", conns, got, d.Plan.Inside)
	}
}

func gossipPort(t *testing.T, n *node) string {
	t.Helper()
	st, err := n.status()
	if err != nil {
		t.Fatal(err)
	}
	return st.Gossip[strings.LastIndex(st.Gossip, ":")+1:]
}

func countDescriptors(t *testing.T, n *node) (all int) {
	t.Helper()
	kinds, err := descriptors(n.pid())
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range kinds {
		all += count
	}
	return all
}
