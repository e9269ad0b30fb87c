package gossip

import (
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestRealSockets(t *testing.T) {
	defer goleak.VerifyNone(t)
	start := func(i int, seeds ...string) *Gossip {
		g, err := Start(Config{Cluster: testCluster, UUID: uuid(i), Epoch: 1, Meta: meta(i), Keys: [][]byte{testKey},
			Bind: "127.0.0.1:0", Seeds: seeds, Profile: Fast, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one := start(1)
	defer one.Close()
	_, port, _ := net.SplitHostPort(one.Address().String())
	two := start(2, net.JoinHostPort("localhost", port)) // a name, to be resolved
	defer two.Close()
	for _, g := range []*Gossip{one, two} {
		select {
		case <-g.Wake():
		case <-time.After(10 * time.Second):
			t.Fatal("no report within 10 s")
		}
	}
	if !complete([]*Gossip{one, two}) {
		t.Errorf("members %v and %v, want each other", names(one.Members()), names(two.Members()))
	}
	if err := two.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := two.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
