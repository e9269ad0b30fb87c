package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
)

var modes = []Mode{
	{Name: "fabrictest mem", Pairs: []Pair{Across, SameNode, SameApp}, Has: Held | AllPorts, Settles: 50 * time.Millisecond, Start: inTest()},
	{Name: "fabrictest quic", Pairs: []Pair{Across}, Has: Held, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.QUIC())},
	{Name: "fabrictest tcp", Pairs: []Pair{Across}, Has: Held, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.TCP())},
	{Name: "fabrictest tcp plaintext", Pairs: []Pair{Across}, Has: Held, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.TCPPlaintext())},
	{Name: "fabrictest quic, nothing between", Pairs: []Pair{Across}, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.QUIC(), fabrictest.Unbroken())},
	{Name: "fabrictest tcp, nothing between", Pairs: []Pair{Across}, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.TCP(), fabrictest.Unbroken())},
	{Name: "fabrictest mixed", Pairs: []Pair{Across}, Has: Held, Settles: 50 * time.Millisecond, Start: inTest(fabrictest.Mixed())},
	{Name: "attached mem", Pairs: []Pair{Across, SameNode, SameApp}, Has: Processes | Held, Settles: 400 * time.Millisecond, Start: attached()},
	{Name: "attached quic", Pairs: []Pair{Across}, Has: Processes | Held, Settles: 400 * time.Millisecond, Start: attached(fabrictest.QUIC())},
	{Name: "attached tcp", Pairs: []Pair{Across}, Has: Processes | Held, Settles: 400 * time.Millisecond, Start: attached(fabrictest.TCP())},
	{Name: "attached, paths", Pairs: []Pair{Across}, Has: Processes, Settles: 400 * time.Millisecond, Start: pathed},
	{Name: "embedded", Pairs: []Pair{Across}, Has: Held, Settles: 400 * time.Millisecond, Start: embedded},
	{Name: "embedded, paths", Pairs: []Pair{Across}, Settles: 400 * time.Millisecond, Start: embeddedPaths},
	{Name: "attached, shared-memory paths", Pairs: []Pair{SameNode, SameApp}, Has: Processes, Settles: 400 * time.Millisecond, Start: shmPathed},
}

// inTest starts the nodes of a test's cluster: applications attach within this process.
func inTest(opts ...fabrictest.Option) func(testing.TB, time.Duration) Site {
	return func(tb testing.TB, timeout time.Duration) Site {
		return site{fabrictest.NewCluster(tb, 2, append(opts, fabrictest.ConnectTimeout(timeout))...)}
	}
}

type site struct{ *fabrictest.Cluster }

func (s site) Ready(context.Context, *fabric.Endpoint, *fabric.Endpoint) error { return nil }

func (s site) Restart(node int) { s.Cluster.Restart(node) }

func (s site) Hold() (release func()) { return hold(s.Cluster) }

func (s site) Process(int) (fabric.Addr, fabric.Addr, func()) {
	panic("BUG: the applications of an embedded node are in its process")
}

// hold holds up the transfers from node 0 to node 1, for a time that no row reaches.
func hold(c *fabrictest.Cluster) (release func()) {
	return c.Link(0, 1).RMA().For(2 * patience).Hold().End
}

// attached starts nodes whose applications attach through Unix sockets.
func attached(opts ...fabrictest.Option) func(testing.TB, time.Duration) Site {
	return attachedWith(server.Options{}, opts...)
}

// attachedWith is attached to servers with options.
func attachedWith(serving server.Options, opts ...fabrictest.Option) func(testing.TB, time.Duration) Site {
	return func(tb testing.TB, timeout time.Duration) Site {
		dir, err := os.MkdirTemp("", "fabric") // a TempDir's path may be too long for a socket
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { os.RemoveAll(dir) })
		s := &sockets{
			tb:      tb,
			dir:     dir,
			serving: serving,
			cluster: fabrictest.NewCluster(tb, 2, append(opts, fabrictest.ConnectTimeout(timeout))...),
		}
		for node := range s.end {
			s.serve(node)
			tb.Cleanup(func() { s.end[node]() })
		}
		return s
	}
}

// shmPathed is attached with connections that go over to shared memory before a
// row has them: else most rows would be over before.
func shmPathed(tb testing.TB, timeout time.Duration) Site {
	return rings{attached()(tb, timeout).(*sockets), attach.ViaShmPath}
}

// pathed is attached with connections that go over to paths before a row has them.
func pathed(tb testing.TB, timeout time.Duration) Site {
	return rings{attached(fabrictest.Paths())(tb, timeout).(*sockets), attach.ViaPath}
}

// embedded is attached with applications in the process of their nodes, as those of
// package embed are.
func embedded(tb testing.TB, timeout time.Duration) Site {
	return &ownProcess{Site: attached()(tb, timeout)}
}

func embeddedPaths(tb testing.TB, timeout time.Duration) Site {
	return &ownProcess{Site: pathed(tb, timeout)}
}

type ownProcess struct{ Site }

func (o *ownProcess) App(node int, admin bool) *fabric.Node {
	var s *sockets
	switch site := o.Site.(type) {
	case *sockets:
		s = site
	case rings:
		s = site.sockets
	}
	session, err := client.AttachTo(context.Background(), s.server[node][admin])
	if err != nil {
		s.tb.Fatal(err)
	}
	n := hook.Node(session).(*fabric.Node)
	s.tb.Cleanup(func() { n.Close() })
	return n
}

type rings struct {
	*sockets
	via string
}

func (r rings) Ready(ctx context.Context, a, b *fabric.Endpoint) error {
	if err := r.goOver(ctx, r.via, a, b); err != nil || r.via != "path" {
		return err
	}
	return r.goFar(a, b)
}

// sockets are the two nodes of a cluster, each with a socket for privileged
// applications and one for others.
type sockets struct {
	tb      testing.TB
	dir     string
	cluster *fabrictest.Cluster
	serving server.Options
	// over counts the ends of connections whose messages have gone over to shared
	// memory, or to a path.
	over [2]atomic.Int64
	// noPath is how many requests for a path fail, for a reason that passes.
	noPath atomic.Int64
	// far counts the questions about windows of a peer on another node, which only an end
	// asks that has an RMA path.
	far    atomic.Int64
	server [2]map[bool]*server.Server // of each node, for applications with privileges or without
	end    [2]func()                  // stops serving a node and waits for it
}

func (s *sockets) path(node int, admin bool) string {
	name := map[bool]string{true: "admin", false: "plain"}[admin]
	return filepath.Join(s.dir, name+string(rune('0'+node)))
}

func (s *sockets) serve(node int) {
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 2)
	s.server[node] = make(map[bool]*server.Server)
	for _, admin := range []bool{true, false} {
		ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.path(node, admin), Net: "unixpacket"})
		if err != nil {
			s.tb.Fatal(err)
		}
		o := s.serving
		o.Authorize = func(c attach.Credentials) (attach.Credentials, error) {
			c.Admin = admin
			return c, nil
		}
		o.NewSession = func(c attach.Credentials) (attach.NodeSession, error) {
			return watchedSession{hook.Session(s.cluster, node, c), s}, nil
		}
		server, err := server.NewServer(ctx, o)
		if err != nil {
			s.tb.Fatal(err)
		}
		s.server[node][admin] = server
		go func() { served <- server.Serve(ln) }()
	}
	s.end[node] = func() {
		cancel()
		for range 2 {
			if err := <-served; err != nil {
				s.tb.Errorf("serve node %d: %v", node, err)
			}
		}
		s.end[node] = func() {}
	}
}

// A watchedSession is a node's session of which the sockets see which way messages
// take.
type watchedSession struct {
	attach.NodeSession
	s *sockets
}

func (w watchedSession) Open() (attach.NodeEndpoint, error) {
	e, err := w.NodeSession.Open()
	if err != nil {
		return nil, err
	}
	return watchedEndpoint{e, w.s}, nil
}

type watchedEndpoint struct {
	attach.NodeEndpoint
	s *sockets
}

func (w watchedEndpoint) Accept(ctx context.Context) (attach.NodeEndpoint, addr.Addr, error) {
	return w.wrap(w.NodeEndpoint.Accept(ctx))
}

func (w watchedEndpoint) TryAccept() (attach.NodeEndpoint, addr.Addr, error) {
	return w.wrap(w.NodeEndpoint.TryAccept())
}

func (w watchedEndpoint) wrap(e attach.NodeEndpoint, from addr.Addr, err error) (attach.NodeEndpoint, addr.Addr, error) {
	if err != nil {
		return nil, from, err
	}
	return watchedEndpoint{e, w.s}, from, nil
}

func (w watchedEndpoint) Via(path, why string) {
	w.NodeEndpoint.Via(path, why)
	if n := w.s.count(path); n != nil {
		n.Add(1)
	}
}

func (w watchedEndpoint) Path(ctx context.Context, key path.Hash, freed func()) (attach.PathSocket, error) {
	if w.s.noPath.Add(-1) >= 0 {
		freed()
		return attach.PathSocket{}, fmt.Errorf("not now: %w", status.Again)
	}
	m, err := w.NodeEndpoint.Path(ctx, key, freed)
	if err == nil { // its kernel takes few bytes, so that most wait outside of it
		err = unix.SetsockoptInt(int(m.File.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10)
	}
	return m, err
}

func (w watchedEndpoint) RMAPath(ctx context.Context, key path.Hash, freed func()) (attach.PathSocket, error) {
	if w.s.noPath.Add(-1) >= 0 {
		freed()
		return attach.PathSocket{}, fmt.Errorf("not now: %w", status.Again)
	}
	return w.NodeEndpoint.RMAPath(ctx, key, freed)
}

func (w watchedEndpoint) FarWindow(roff int64) (attach.PeerWindow, error) {
	w.s.far.Add(1)
	return w.NodeEndpoint.FarWindow(roff)
}

// goFar has each end of a connection use its RMA path, without an operation that succeeds.
func (s *sockets) goFar(a, b *fabric.Endpoint) error {
	for _, ep := range []*fabric.Endpoint{a, b} {
		for before := s.far.Load(); s.far.Load() == before; {
			if err := ep.VWriteTo([]byte{1}, 0, 0); !errors.Is(err, syscall.ENXIO) {
				return fmt.Errorf("a write to no window: %v", err)
			}
		}
		m, err := ep.FenceMark(fabric.InitSelf)
		if err == nil {
			err = ep.FenceWait(context.Background(), m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// count is the counter of the ends that use a way; nil: it is not counted.
func (s *sockets) count(via string) *atomic.Int64 {
	switch via {
	case attach.ViaShmPath:
		return &s.over[0]
	case attach.ViaPath:
		return &s.over[1]
	}
	return nil
}

// goOver sends between the ends of a connection until its messages go via a shared-memory path or
// a path between nodes. All that is sent is received: nothing of it is left to see.
func (s *sockets) goOver(ctx context.Context, via string, a, b *fabric.Endpoint) error {
	n := s.count(via)
	want := n.Load() + 2
	for extra := 0; extra < 4; { // after the node knows, each end still has to change over
		for _, way := range [][2]*fabric.Endpoint{{a, b}, {b, a}} {
			if _, err := way[0].Send(ctx, []byte{1}); err != nil {
				return err
			}
			if _, err := way[1].Recv(ctx, make([]byte, 1)); err != nil {
				return err
			}
		}
		if n.Load() >= want {
			extra++
		}
	}
	return nil
}

func (s *sockets) Ready(context.Context, *fabric.Endpoint, *fabric.Endpoint) error { return nil }

func (s *sockets) App(node int, admin bool) *fabric.Node {
	s.tb.Helper()
	n, err := fabric.Attach(context.Background(), s.path(node, admin))
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() { n.Close() })
	return n
}

// Kill ends the fabricd of a node: its applications lose their sockets, its links fall
// silent.
func (s *sockets) Kill(node int) {
	s.cluster.Kill(node)
	s.end[node]()
}

// Stop ends the fabricd of a node as SIGTERM does.
func (s *sockets) Stop(node int) {
	s.cluster.Stop(node)
	s.end[node]()
}

func (s *sockets) Restart(node int) {
	s.cluster.Restart(node)
	s.serve(node)
}

func (s *sockets) Evict(node int) { s.cluster.Evict(node) }

func (s *sockets) Hold() (release func()) { return hold(s.cluster) }

func (s *sockets) Process(node int) (accepts, waits fabric.Addr, kill func()) {
	return startPeer(s.tb, s.path(node, true))
}
