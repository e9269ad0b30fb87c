package fabrictest

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// The nodes of an Unbroken cluster use the provider itself, where nothing can be broken;
// those of others have a layer before it.
func TestUnbrokenNodesHaveNothingBetween(t *testing.T) {
	for name, over := range map[string]Option{"tcp": TCP(), "quic": QUIC(), "mixed": Mixed()} {
		t.Run(name, func(t *testing.T) {
			for _, unbroken := range []bool{false, true} {
				opts := []Option{over}
				if unbroken {
					opts = append(opts, Unbroken())
				}
				c := NewCluster(t, 1, opts...)
				layer := c.nodes[0].layer
				if unbroken {
					layer = nil
				}
				providers, err := c.network.join(c.identityOf(7), layer)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range providers {
					bare := false
					switch p.(type) {
					case *stream.Provider:
						bare = true
					case *quic.Provider:
						bare = true
					}
					if bare != unbroken {
						t.Errorf("unbroken: %v: %T", unbroken, p)
					}
				}
				for _, p := range providers {
					p.Close()
				}
				if _, err := c.NodeFault(0, NodeFault{}); unbroken && (err == nil || !strings.Contains(err.Error(), "Unbroken")) {
					t.Errorf("a fault of a node: %v", err)
				}
			}
		})
	}
}
