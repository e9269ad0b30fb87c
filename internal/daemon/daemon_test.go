package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit bounds what a test waits for on real sockets.
const testLimit = 20 * time.Second

// testConfig returns a configuration of a node on loopback with directories of
// its own.
func testConfig(t *testing.T, role Role, name string) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "fd") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := Default()
	c.Role, c.Name = role, name
	c.Detection = "fast"
	c.StateDir = filepath.Join(dir, "state")
	c.Network = NetworkConfig{Bind: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	c.Local.Socket, c.Local.AdminSocket = filepath.Join(dir, "app"), filepath.Join(dir, "admin")
	return c
}

// testHost makes a cluster, starts its host, and returns the host and the
// configuration of a node that may join.
func testHost(t *testing.T) (host *Daemon, node func(name string) Config) {
	t.Helper()
	return testHostWith(t, testConfig(t, RoleHost, "host"))
}

// testHostWith is testHost for a configuration of the host.
func testHostWith(t *testing.T, c Config) (host *Daemon, node func(name string) Config) {
	t.Helper()
	token := filepath.Join(filepath.Dir(c.StateDir), "token")
	if _, err := Init(c, token); err != nil {
		t.Fatal(err)
	}
	host = startTest(t, c)
	return host, func(name string) Config {
		n := testConfig(t, RoleNode, name)
		n.Join, n.TokenFile = []string{host.Status().Data[0]}, token
		return n
	}
}

// startTest starts a node and waits until it has an ID.
func startTest(t *testing.T, c Config) *Daemon {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	d, err := Start(ctx, c, Options{Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return d
}

// eventually waits for an event of d that is wanted, beginning with the nodes
// that are there.
func eventually(t *testing.T, d *Daemon, what string, wanted func(NodeEvent) bool) {
	t.Helper()
	sub := d.subscribe()
	defer d.unsubscribe(sub)
	for _, e := range sub.current {
		if wanted(e) {
			return
		}
	}
	limit := time.After(testLimit)
	for {
		select {
		case e, ok := <-sub.events:
			if !ok {
				t.Fatalf("%s: the node ended before: %s", d.cfg.Name, what)
			}
			if wanted(e) {
				return
			}
		case <-limit:
			t.Fatalf("%s has not seen: %s", d.cfg.Name, what)
		}
	}
}

func sees(t *testing.T, d *Daemon, id addr.NodeID) {
	t.Helper()
	eventually(t, d, fmt.Sprintf("node %d", id), func(e NodeEvent) bool {
		return (e.Event == EventCurrent || e.Event == EventAdded) && e.Node.ID == id
	})
}

// TestThreeNodes plays the incarnation of a small cluster on real sockets.
func TestThreeNodes(t *testing.T) {
	host, node := testHost(t)
	one := startTest(t, node("one"))
	config := node("two")
	two := startTest(t, config)
	for _, d := range []*Daemon{host, one, two} {
		for id := range addr.NodeID(3) {
			sees(t, d, id)
		}
		st := d.Status()
		if st.State != phaseJoined || st.Host != "reachable" || !d.Health().Healthy || st.Counts.Nodes != 3 {
			t.Errorf("%s: status %+v, health %+v", d.cfg.Name, st, d.Health())
		}
		if left := time.Until(st.Certificate); left < time.Hour {
			t.Errorf("status: a fresh certificate ends at %v, in %v", st.Certificate, left)
		}
		if st.Cluster != host.Status().Cluster || st.Generation == 0 {
			t.Errorf("%s: cluster %s generation %d", d.cfg.Name, st.Cluster, st.Generation)
		}
	}
	talk(t, one, two)

	if _, err := one.CreateToken(0, 0); err == nil {
		t.Error("a node that is not the host made a token")
	}
	if token, err := host.CreateToken(time.Minute, 1); err != nil || token.Token == "" || token.Expires == nil {
		t.Errorf("the host's token: %v", err)
	}

	// Two leaves, and comes back with the same ID and the next generation.
	left := watchFor(one, func(e NodeEvent) bool { return e.Event == EventRemoved })
	began, last := time.Now(), two.Self().Incarnation
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if err := two.Leave(ctx); err != nil {
		t.Errorf("leave: %v", err)
	}
	if err := two.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("leaving took %v, want 2 s at most", took)
	}
	if e, err := left(ctx); err != nil || e.Node.ID != 2 || e.Reason != "left" {
		t.Errorf("one receives %+v, %v, want that node 2 left", e, err)
	}
	again := startTest(t, config)
	if st := again.Status(); st.ID != last.Node || st.Generation != last.Generation+1 {
		t.Errorf("two is back as %d.%d, want the incarnation after %v", st.ID, st.Generation, last)
	}
	sees(t, one, 2)
	sees(t, again, 1) // its own ID comes first, the others follow
	talk(t, again, one)
}

// watchFor begins to watch d's events and returns a function that waits for one.
func watchFor(d *Daemon, wanted func(NodeEvent) bool) func(context.Context) (NodeEvent, error) {
	sub := d.subscribe()
	return func(ctx context.Context) (NodeEvent, error) {
		defer d.unsubscribe(sub)
		for {
			select {
			case e, ok := <-sub.events:
				if !ok {
					return e, errors.New("the node ended")
				}
				if wanted(e) {
					return e, nil
				}
			case <-ctx.Done():
				return NodeEvent{}, ctx.Err()
			}
		}
	}
}

// talk sends a message from one node to another and checks the tables of both.
func talk(t *testing.T, from, to *Daemon) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	listener := open(t, to, 1000)
	defer listener.Close()
	if _, err := listener.Bind(2050); err != nil {
		t.Fatal(err)
	}
	if err := listener.Listen(1); err != nil {
		t.Fatal(err)
	}
	dialer := open(t, from, 1000)
	defer dialer.Close()
	accepted := make(chan attach.NodeEndpoint, 1)
	go func() {
		ep, _, err := listener.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- ep
	}()
	if _, err := dialer.Connect(ctx, addr.Addr{Node: to.Self().Incarnation.Node, Port: 2050}); err != nil {
		t.Fatal(err)
	}
	ep := <-accepted
	if ep == nil {
		t.FailNow()
	}
	defer ep.Close()
	if _, err := dialer.Send(ctx, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 5)
	for n := 0; n < len(p); {
		k, err := ep.Recv(ctx, p[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	if string(p) != "hello" {
		t.Errorf("received %q", p)
	}
	if c := from.Status().Counts; c.Links < 1 || c.Conns < 1 || c.Ports < 1 {
		t.Errorf("%s counts %+v during a connection", from.cfg.Name, c)
	}
	if rtt, err := from.Ping(ctx, to.Self().Incarnation.Node); err != nil || rtt <= 0 {
		t.Errorf("ping: %v, %v", rtt, err)
	}
}

// open returns an endpoint of a session of user uid, which ends with the test.
func open(t *testing.T, d *Daemon, uid uint32) attach.NodeEndpoint {
	t.Helper()
	s, err := d.session(attach.Credentials{UID: uid, GID: uid})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	ep, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

func TestPrivilegedPortsAreForConfiguredUsers(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.AdminUIDs, c.Local.AdminGIDs = []uint32{7}, []uint32{8}
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	d := startTest(t, c)
	for i, uid := range []uint32{7, 8} { // 8 by its group
		ep := open(t, d, uid)
		if _, err := ep.Bind(addr.Port(100 + i)); err != nil {
			t.Errorf("user %d binds a port below 1024: %v", uid, err)
		}
		ep.Close()
	}
	for _, uid := range []uint32{0, 1000} { // 0 is not configured here
		ep := open(t, d, uid)
		if _, err := ep.Bind(102); !errors.Is(err, status.Access) {
			t.Errorf("user %d binds a port below 1024: %v, want EACCES", uid, err)
		}
		ep.Close()
	}
}

// startFails starts c and expects one line of a *ConfigError with want.
func startFails(t *testing.T, c Config, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	d, err := Start(ctx, c, Options{Log: zerolog.Nop()})
	if err == nil {
		d.Close()
	}
	if lines := configError(t, err); len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("got %q, want one line with %q", lines, want)
	}
}

func portOf(t *testing.T, address string) uint16 {
	t.Helper()
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port()
}

func TestWhatCannotBeUsedIsSaidInOneLine(t *testing.T) {
	host, node := testHost(t)
	data, gossip := portOf(t, host.Status().Data[0]), portOf(t, host.Status().Gossip)

	c := node("port taken")
	c.Network.DataPort = gossip
	startFails(t, c, fmt.Sprintf("data-port: %q: is taken on 127.0.0.1 by another program", strconv.Itoa(int(c.Network.DataPort))))

	c = node("gossip port taken")
	c.Network.GossipPort = data
	startFails(t, c, fmt.Sprintf("gossip-port: %q: is taken", strconv.Itoa(int(data))))

	c = node("no such address")
	c.Network.Bind = netip.MustParseAddr("203.0.113.7")
	startFails(t, c, `bind: "203.0.113.7": is no address of this machine`)

	c = node("admin socket in use")
	c.Local.AdminSocket = host.cfg.Local.AdminSocket
	startFails(t, c, "admin: "+strconv.Quote(c.Local.AdminSocket)+": another fabricd listens there")

	c = node("socket in use")
	c.Local.Socket = host.cfg.Local.Socket
	startFails(t, c, "socket: "+strconv.Quote(c.Local.Socket)+": another fabricd listens there")

	c = node("no such group")
	c.Local.SocketGroup = "no-such-group"
	startFails(t, c, `socket-group: "no-such-group": no such group`)

	c = host.cfg
	startFails(t, c, "in use by another fabricd")

	c = node("no token")
	c.TokenFile = ""
	startFails(t, c, "needs the file of a join token")

	c = node("no host")
	c.Join = nil
	startFails(t, c, "needs the host's address")
	if _, err := os.Stat(c.Local.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestTokensOfOtherClustersAreRefused(t *testing.T) {
	host, node := testHost(t)
	other, _ := testHost(t)
	token := filepath.Join(t.TempDir(), "other.token")
	made, err := other.CreateToken(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteSecret(token, func() (string, error) { return made.Token, nil }); err != nil {
		t.Fatal(err)
	}
	c := node("stranger")
	c.TokenFile = token
	startFails(t, c, "token-file: ")

	c = node("member")
	d := startTest(t, c)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c.TokenFile = token
	startFails(t, c, fmt.Sprintf("belongs to cluster %s, the token to %s", host.Status().Cluster, other.Status().Cluster))
	c.TokenFile = filepath.Join(t.TempDir(), "gone") // not needed any more
	startTest(t, c)
}

func TestRolesBelongToTheirDirectory(t *testing.T) {
	host, node := testHost(t)
	c := node("one")
	d := startTest(t, c)
	d.Close()
	c.Role = RoleHost
	startFails(t, c, "was made for the role node")
	c = host.cfg
	host.Close()
	c.Role = RoleNode
	startFails(t, c, "state-dir: ")
}

func TestAnUnreachableHostIsWaitedFor(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	token := filepath.Join(filepath.Dir(c.StateDir), "token")
	if _, err := Init(c, token); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()

	n := testConfig(t, RoleNode, "early")
	n.Join, n.TokenFile = []string{nobody}, token
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() {
		_, err := Start(ctx, n, Options{Log: zerolog.Nop()})
		started <- err
	}()
	client := NewClient(n.Local.AdminSocket)
	defer client.Close()
	for { // the admin interface answers while the node waits
		st, err := client.Status(t.Context())
		if err == nil && strings.Contains(st.Detail, "connection refused") {
			if st.State != phaseJoining || st.ID != addr.NoNode {
				t.Errorf("status %+v, want joining without an ID", st)
			}
			break
		}
		select {
		case err := <-started:
			t.Fatalf("it gave up: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if h, err := client.Health(t.Context()); err != nil || h.Healthy || !strings.HasPrefix(h.Detail, "joining") {
		t.Errorf("health %+v, %v, want joining", h, err)
	}
	cancel()
	if err := <-started; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}

// TestApplicationsAttachOverTheSocket uses the daemon's own socket.
func TestApplicationsAttachOverTheSocket(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.SocketMode = 0o600
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	d := startTest(t, c)
	if info, err := os.Stat(c.Local.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v, want mode 0600", info, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	s, err := client.Dial(ctx, c.Local.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Self(); got.Incarnation != d.Self().Incarnation || got.Name != "host" {
		t.Errorf("self %+v, want %+v", got, d.Self())
	}
	d.Close()
	select {
	case <-s.Done():
	case <-ctx.Done():
		t.Error("the session goes on after its node's end")
	}
	s.Close()
}

func TestCloseLeavesNothing(t *testing.T) {
	host, node := testHost(t)
	c := node("one")
	d := startTest(t, c)
	events := make(chan error, 1)
	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	seen := make(chan struct{}, 16)
	go func() {
		events <- client.Events(t.Context(), func(NodeEvent) error { seen <- struct{}{}; return nil })
	}()
	<-seen
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
	if err := <-events; err == nil {
		t.Error("the event stream did not end")
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the event stream ended with %v", err)
	}
	select {
	case <-d.Done():
	default:
		t.Error("Done is open after Close")
	}
	for _, path := range []string{c.Local.Socket, c.Local.AdminSocket} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind", path)
		}
	}
	_ = host
}

// session is a session of an application with some credentials.
func (d *Daemon) session(c attach.Credentials) (attach.NodeSession, error) {
	c.Admin = d.admits(c)
	return d.newSession(c)
}
