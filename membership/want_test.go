package membership

import (
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// wants lets a node take no other ID than this one.
func wants(id addr.NodeID) func(*Config) { return func(c *Config) { c.Node.Want = id } }

// ends waits until the agent of n has ended by itself, and returns its error text.
func (w *world) ends(n *node) string {
	w.t.Helper()
	select {
	case <-n.a.Done():
		return n.a.Err().Error()
	case <-time.After(10 * time.Second):
		w.t.Errorf("node %d goes on as %v; its log:\n%s", n.i, n.incarnation(), lastLines(n.logged(), 5))
		return ""
	}
}

// A node has the ID that it wants, also after its restarts, or says why it has none.
func TestANodeHasTheIDThatItWants(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		h := w.host()
		two := w.join(2, wants(7))
		w.within(5*time.Second, "node 2 has the ID 7", func() bool { return two.incarnation().Node == 7 })
		if got := w.ends(w.join(3, wants(7))); !strings.Contains(got, `node-id 7: the ID is taken by node "n2"`) {
			t.Errorf("a second node that wants the ID ends with %q", got)
		}
		first := two.incarnation()
		w.kill(two)
		two = w.again(2, wants(7))
		w.within(5*time.Second, "the restarted node has the ID again", func() bool { return two.incarnation().Node == 7 && two.incarnation() != first })
		w.kill(two)
		two = w.again(2, wants(8))
		if got := w.ends(two); !strings.Contains(got, "node-id 8: this node has the ID 7 and keeps it") {
			t.Errorf("with another wish the node ends with %q", got)
		}
		two.st.Close()
		if got := w.ends(w.join(4, wants(7))); !strings.Contains(got, `that of node "n2", which is away`) {
			t.Errorf("a node that wants the ID of one that is away ends with %q", got)
		}
		if _, err := h.a.RemoveNode(t.Context(), "n2"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		five := w.join(5, wants(7))
		w.within(5*time.Second, "node 5 knows what it waits for", func() bool {
			return strings.Contains(five.logged(), "in quarantine until "+began.UTC().Format("2006-01-02T15:"))
		})
		w.within(11*time.Minute, "node 5 has the ID behind the quarantine", func() bool { return five.incarnation().Node == 7 })
		if got := time.Since(began); got < 9*time.Minute || got > 10*time.Minute+10*time.Second || five.incarnation().Generation <= first.Generation {
			t.Errorf("it has incarnation %v after %v, want a later one than %v behind a quarantine", five.incarnation(), got, first)
		}
	})
}
