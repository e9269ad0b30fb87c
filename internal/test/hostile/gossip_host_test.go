package hostile

import (
	"math"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/gossip"
)

// TestGossipMakesNoHost has a member, which needs the gossip key, gossip that it
// is a host of a later term that serves. Gossip proves nothing: the node with the host
// certificate stays the host.
func TestGossipMakesNoHost(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	for _, uuid := range []addr.UUID{c.evilID.Node, {0xFF}} {
		g, err := gossip.Start(gossip.Config{Cluster: c.id, UUID: uuid, Epoch: math.MaxUint64, Keys: c.keyring.Keys(), Bind: "127.0.0.1:0",
			Seeds: []string{c.host.Status().Gossip}, Log: zerolog.Nop(),
			Meta: gossip.Meta{Incarnation: addr.Incarnation{Generation: math.MaxUint32}, Term: math.MaxUint64, Host: true, Serving: true,
				Addresses: []string{"127.0.0.1:9"}, Providers: []string{"quic"}}})
		if err != nil {
			t.Fatal(err)
		}
		for limit := time.Now().Add(patience); len(g.Take()) < 1; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatal("nobody gossips with the bad member")
			}
		}
		time.Sleep(300 * time.Millisecond) // by now the host would have reacted
		g.Close()
		c.alive(one)
	}
	c.alive(one, c.start(c.node("two")))
}
