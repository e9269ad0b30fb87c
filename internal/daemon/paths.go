package daemon

import (
	"context"
	"net"

	"github.com/fabricd/fabricd/internal/driver"
)

// noPaths says why connections of this node get no path; "": they do.
func (d *Daemon) noPaths() string {
	switch {
	case d.cfg.Paths == pathsOff:
		return "paths are off by the setting paths"
	case d.cfg.EnableFaults:
		return "enable-faults is set: what the operator breaks is the link"
	}
	return ""
}

// The values of the setting paths.
const (
	pathsLazy = "lazy"
	pathsOff  = "off"
)

// pathNetwork returns how this node makes the sockets of paths; nil: it does not.
func (d *Daemon) pathNetwork() *driver.PathNetwork {
	if d.noPaths() != "" {
		return nil
	}
	return &driver.PathNetwork{
		Plaintext: d.cfg.TCPPlaintext,
		Dial: func(ctx context.Context, address string) (*net.TCPConn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
	}
}

// acceptPaths gives the engine the sockets that other nodes open for paths, until the
// node ends.
func (d *Daemon) acceptPaths(engine *driver.Node) {
	side := d.shared.paths
	stop := context.AfterFunc(d.ctx, func() { side.Close() })
	d.wg.Go(func() {
		defer stop()
		for {
			c, err := side.Accept()
			if err != nil {
				return
			}
			h := c.(*handed) // what a handover has
			engine.AcceptPath(h.TCPConn, h)
		}
	})
}
