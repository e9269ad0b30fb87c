package fabrictest

import (
	"context"
	"fmt"
	"net"

	"github.com/fabricd/fabricd/internal/engine"
)

// dialPath connects to the data port of the node at address: a socket on loopback, whose
// other end that node accepts.
func (c *Cluster) dialPath(ctx context.Context, address string) (*net.TCPConn, error) {
	node, ok := c.paths.Load(address)
	if !ok {
		return nil, fmt.Errorf("no node at %s", address)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := l.AcceptTCP()
	if err != nil {
		near.Close()
		return nil, err
	}
	c.accepts.Go(func() { node.(*engine.Node).AcceptPath(far, far) })
	return near.(*net.TCPConn), nil
}
