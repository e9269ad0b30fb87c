package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// needsFaults reports whether a schedule has a fault that only the daemons themselves
// can do at a site: their fault plane, or a fault inside of them. Then they run with
// --enable-faults, and no connection has a path.
func needsFaults(at site, s *scenario.Schedule) bool {
	for _, a := range s.Actions {
		switch {
		case a.Fault != nil && a.Fault.Kind != scenario.FaultDescriptors:
			return true
		case (a.Link != nil || a.Partition != nil) && !at.breaks(a):
			return true
		}
	}
	return false
}

// paths returns the daemons' setting of paths.
func (c *cluster) paths() string {
	if c.faults {
		return history.PathsOff
	}
	return history.PathsLazy
}

// A pathConn is the part of a daemon's connection that the lab reads.
type pathConn struct {
	Local  string // node:port
	Remote string // node:port
	Path   string
	Socket *pathSocket
	// RMASocket is the path of this end's operations.
	RMASocket *pathSocket `json:"rma_socket"`
}

// A pathSocket is the socket of a path, by the addresses of its ends.
type pathSocket struct{ Local, Remote string }

// far reports whether the connection is to another node.
func (c *pathConn) far() bool {
	local, _, _ := strings.Cut(c.Local, ":")
	remote, _, _ := strings.Cut(c.Remote, ":")
	return local != remote
}

// conns asks the node's daemon for its connections.
func (s *node) conns(ctx context.Context) ([]pathConn, error) {
	text, err := ask(ctx, func(ctx context.Context) (json.RawMessage, error) { return s.admin.Get(ctx, "conns") })
	if err != nil {
		return nil, err
	}
	var all struct{ Conns []pathConn }
	return all.Conns, json.Unmarshal(text, &all)
}

// lookEvery is how often daemons are asked for their paths.
const lookEvery = 500 * time.Millisecond

// watchPaths writes down how many connections have gone over to a path, until the
// cluster's ctx is done.
func (c *cluster) watchPaths() {
	if c.faults {
		return
	}
	seen := map[string]bool{}
	last := map[history.Source]history.Paths{}
	for pause(c.followers.ctx, lookEvery) {
		for _, s := range c.nodes {
			if !s.answers() {
				continue
			}
			_, source := s.daemon.current()
			conns, err := s.conns(c.followers.ctx)
			if err != nil {
				continue // it ends, or stands still
			}
			now := countPaths(conns, seen)
			if now.New > 0 || now != last[source] {
				last[source] = now
				now.Target = source
				c.log.Put(&now)
			}
		}
	}
}

// countPaths counts connections to other nodes, and notes the sockets of their paths in
// seen.
func countPaths(conns []pathConn, seen map[string]bool) (n history.Paths) {
	for _, conn := range conns {
		if !conn.far() {
			continue
		}
		n.Conns++
		if conn.Path != "path" || conn.Socket == nil {
			continue
		}
		n.Paths++
		if key := conn.Socket.Local + " " + conn.Socket.Remote; !seen[key] {
			seen[key] = true
			n.New++
		}
	}
	return n
}

// A pathEnds is a path between two nodes, by the addresses of its socket's ends.
type pathEnds struct {
	fromNode, toNode int
	from, to         netip.AddrPort
}

// breakPaths breaks the paths that there are between the nodes of an action. Both ends
// know a message path; only its initiator's node lists an RMA path.
func (c *cluster) breakPaths(ctx context.Context, a scenario.Action) (effect, error) {
	var paths []pathEnds
	for _, from := range a.Path.From.IDs() {
		for _, to := range a.Path.To.IDs() {
			there, err := c.pathsTo(ctx, from, to)
			back, err2 := c.pathsTo(ctx, to, from)
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			if a.Path.Of != scenario.PathOfRMA {
				paths = append(paths, there.messages...)
			}
			if a.Path.Of != scenario.PathOfMessages {
				paths = append(paths, there.rma...)
				for _, p := range back.rma {
					paths = append(paths, pathEnds{from, to, p.to, p.from})
				}
			}
		}
	}
	if len(paths) == 0 {
		return nil, errors.New("there is no path")
	}
	return c.site.breakPaths(ctx, a, paths)
}

// A pathsOf has the paths that a node's daemon lists.
type pathsOf struct{ messages, rma []pathEnds }

// pathsTo asks a node for the paths of its connections to another one.
func (c *cluster) pathsTo(ctx context.Context, from, to int) (found pathsOf, err error) {
	conns, err := c.nodes[from].conns(ctx)
	if err != nil {
		return found, err
	}
	return pathsAmong(conns, from, to, c.site.place(to).advertise)
}

// pathsAmong returns the paths of a node's connections to another one, whose address is at.
func pathsAmong(conns []pathConn, from, to int, at netip.Addr) (found pathsOf, err error) {
	add := func(all *[]pathEnds, s *pathSocket) {
		if s == nil {
			return
		}
		local, err1 := netip.ParseAddrPort(s.Local)
		remote, err2 := netip.ParseAddrPort(s.Remote)
		if err1 != nil || err2 != nil {
			err = errors.Join(err, err1, err2)
			return
		}
		if remote.Addr().Unmap() == at {
			*all = append(*all, pathEnds{from, to, netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())})
		}
	}
	for _, conn := range conns {
		add(&found.messages, conn.Socket)
		add(&found.rma, conn.RMASocket)
	}
	return found, err
}
