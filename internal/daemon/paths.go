package daemon

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
)

// NoPaths returns why connections of a node with this configuration get no path; "": they do.
func (c Config) NoPaths() string {
	switch {
	case c.Paths == pathsOff:
		return "paths are off by the setting paths"
	case c.EnableFaults:
		return "enable-faults is set: what the operator breaks is the link"
	}
	if err := path.Absent(); err != nil {
		return err.Error()
	}
	return ""
}

// The values of the setting paths.
const (
	pathsLazy = "lazy"
	pathsOff  = "off"
)

// pathNetwork returns how this node makes the sockets of paths; nil: it does not.
func (d *Daemon) pathNetwork() *engine.PathNetwork {
	if d.cfg.NoPaths() != "" {
		return nil
	}
	return &engine.PathNetwork{
		Plaintext: d.cfg.TCPPlaintext,
		Max:       d.cfg.maxPaths(),
		Dial: func(ctx context.Context, address string) (*net.TCPConn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
	}
}

// maxPathsMost is the largest max-paths.
const maxPathsMost = 1 << 20

// maxPaths is how many paths the node may have.
func (c *Config) maxPaths() int {
	if c.MaxPaths == 0 {
		return int(min(server.DefaultPaths(), maxPathsMost))
	}
	return c.MaxPaths
}

// LeastDescriptors is how many descriptors a node needs to serve a few applications.
const LeastDescriptors = 256

// checkPaths reports a max-paths that would leave the node too few descriptors for its
// links, sessions and data sockets.
func (c *Config) checkPaths() error {
	if all := shm.Descriptors(); int64(c.MaxPaths) > all/2 {
		return problem("max-paths", strconv.Itoa(c.MaxPaths),
			fmt.Sprintf("is more than half of the %d descriptors that this process may have (RLIMIT_NOFILE); want fewer, or a higher limit", all), nil)
	}
	return nil
}

// acceptPaths gives the engine the sockets that other nodes open for paths, until the
// node ends.
func (d *Daemon) acceptPaths(engine *engine.Node) {
	side := d.ports.demux.paths
	stop := context.AfterFunc(d.tasks.ctx, func() { side.Close() })
	d.tasks.wg.Go(func() {
		defer stop()
		for {
			c, err := side.Accept()
			if err != nil {
				return
			}
			h := c.(*handed) // the type of each connection from a handover
			engine.AcceptPath(h.TCPConn, h)
		}
	})
}
