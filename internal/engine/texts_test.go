package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestErrorsSayWhatIsTheMatter: a live node that does not answer is not said to be none,
// and operations on a peer's windows that go through the node are not said to fail.
func TestErrorsSayWhatIsTheMatter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		a, _ := fab.pair(0, 1)
		for range 2 {
			for _, c := range fab.nodes[0].Conns() {
				if c.RMA != "node" || c.RMAWhy != "the peer is on another node" {
					t.Errorf("RMA goes through %q: %q", c.RMA, c.RMAWhy)
				}
			}
			w := a.(interface {
				PeerWindow(roff int64) (attach.PeerWindow, error)
			})
			if _, err := w.PeerWindow(0); status.Of(err) != status.NotSupp {
				t.Errorf("the window of a peer on another node: %v", err)
			}
		}
	})
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		_, at := fab.listener(1, 1)
		fab.hub.Cut("node0.1", "node1.1")
		_, err := fab.open(0).Connect(context.Background(), at)
		if status.Of(err) != status.NoDevice || !strings.Contains(err.Error(), "reach") || strings.Contains(err.Error(), status.NoDevice.Error()) {
			t.Errorf("connect to a live node that does not answer: %v", err)
		}
	})
}
