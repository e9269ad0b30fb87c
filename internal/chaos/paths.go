package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/history"
	"github.com/fabricd/fabricd/internal/scenario"
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

// paths says how the daemons run.
func (c *cluster) paths() string {
	if c.faults {
		return history.PathsOff
	}
	return history.PathsLazy
}

// DescribePaths says how the daemons of a run in a real lab ran ([history.Begin].Paths),
// and how many connections went over to a path.
func DescribePaths(daemons string, n int) string {
	if daemons == history.PathsOff {
		return "faults enabled: no paths"
	}
	return fmt.Sprintf("%d connections on paths", n)
}

// A pathConn is what the lab reads of a daemon's connection.
type pathConn struct {
	ID     uint64
	Local  string // node:port
	Remote string // node:port
	Path   string
	Socket *pathSocket
}

// A pathSocket is the socket of a path, by the addresses of its ends.
type pathSocket struct{ Local, Remote string }

// far reports whether the connection is to another node.
func (c *pathConn) far() bool {
	local, _, _ := strings.Cut(c.Local, ":")
	remote, _, _ := strings.Cut(c.Remote, ":")
	return local != remote
}

// conns asks the slot's daemon for its connections.
func (s *slot) conns(ctx context.Context) ([]pathConn, error) {
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	text, err := s.admin.Get(ctx, "conns")
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
	for pause(c.ctx, lookEvery) {
		for _, s := range c.slots {
			if !s.answers() {
				continue
			}
			_, source, _, _ := s.current()
			conns, err := s.conns(c.ctx)
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

// A pathEnds is a path between two slots, by the addresses of its socket's ends.
type pathEnds struct {
	fromSlot, toSlot int
	from, to         netip.AddrPort
}

// breakPaths breaks the paths that there are between the slots of an action.
func (c *cluster) breakPaths(ctx context.Context, a scenario.Action) (effect, error) {
	var paths []pathEnds
	for _, from := range a.Path.From.IDs() {
		conns, err := c.slots[from].conns(ctx)
		if err != nil {
			return nil, err
		}
		for _, to := range a.Path.To.IDs() {
			found, err := c.pathsTo(conns, from, to)
			if err != nil {
				return nil, err
			}
			paths = append(paths, found...)
		}
	}
	if len(paths) == 0 {
		return nil, errors.New("there is no path")
	}
	return c.site.breakPaths(ctx, a, paths)
}

// pathsTo returns the paths of a slot's connections to another one.
func (c *cluster) pathsTo(conns []pathConn, from, to int) ([]pathEnds, error) {
	var found []pathEnds
	for _, conn := range conns {
		if conn.Socket == nil {
			continue
		}
		local, err := netip.ParseAddrPort(conn.Socket.Local)
		remote, err2 := netip.ParseAddrPort(conn.Socket.Remote)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		if remote.Addr().Unmap() == c.site.place(to).advertise {
			found = append(found, pathEnds{from, to, netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())})
		}
	}
	return found, nil
}
