package embed_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
)

// The rules of an embedded node hold for other nodes and for its own process.
func TestAccessRulesOfAnEmbeddedNode(t *testing.T) {
	c := config(t, "host")
	c.Host, c.Access, c.DefaultAccess = true, []string{"2050 from node", "2060 bind none"}, "closed"
	host, other := clusterOf(t, c)
	node := start(t, other)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := host.Listen(2060); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a port that no user may bind: %v, want EACCES", err)
	}
	for port, allowed := range map[fabric.Port]*embed.Node{2050: node, 2051: host} {
		l, err := host.Listen(port)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, from := range []*embed.Node{node, host} {
			if from != allowed {
				if _, err := from.DialAddr(ctx, fabric.Addr{Port: port}); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s to port %d: %v, want ECONNREFUSED", from.Name(), port, err)
				}
				continue
			}
			go from.DialAddr(ctx, fabric.Addr{Port: port})
			conn, err := l.AcceptConn(ctx)
			if err != nil {
				t.Fatal(err)
			}
			p, err := conn.Peer()
			if err != nil || p.Name != from.Name() || p.Node != from.ID() || p.UID != int64(os.Getuid()) {
				t.Errorf("port %d: peer %+v, %v, want %s", port, p, err, from.Name())
			}
		}
	}
	bad := config(t, "x")
	bad.Access = []string{"2050"}
	if _, err := embed.Start(ctx, bad); err == nil {
		t.Error("started with half a rule")
	}
}
