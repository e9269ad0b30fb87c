package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/sockfile"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/verdict"
)

// fakeSubject is a node of which only the admin interface exists.
type fakeSubject struct {
	*Daemon // which has no parts
	*nodeList
	health   Health
	findings []Finding
	ping     func(ctx context.Context, id addr.NodeID) (time.Duration, error)
	asked    []string // what was asked for
	rotate   func(context.Context) (Keys, error)
}

func newFakeSubject() *fakeSubject {
	f := &fakeSubject{Daemon: &Daemon{}, nodeList: newNodeList(), health: Health{Healthy: true, Detail: "joined"}}
	f.nodeList.apply(membership.Event{Kind: membership.EventSelf, Node: testNode(3, 1, "three")}, time.Now())
	return f
}

func testNode(id addr.NodeID, generation addr.Generation, name string) membership.Node {
	return membership.Node{Incarnation: addr.Incarnation{Node: id, Generation: generation},
		Identity: verdict.Identity{Claims: testClaims(name, "10.0.0.1:7700")}, State: membership.Alive, Since: time.Now()}
}

func testClaims(name string, addresses ...string) verdict.Claims {
	c, err := verdict.NewClaims(name, addresses, nil)
	if err != nil {
		panic(err)
	}
	return c
}

type fakeRow struct {
	Port addr.Port `json:"port"`
}

func (f *fakeSubject) Status() Status              { return Status{Name: "three", ID: 3} }
func (f *fakeSubject) Nodes() Nodes                { return f.nodeList.snapshot(time.Now()) }
func (f *fakeSubject) Table(name string) any       { return []fakeRow{{2050}} }
func (f *fakeSubject) Findings() []Finding         { return f.findings }
func (f *fakeSubject) Health() Health              { return f.health }
func (f *fakeSubject) subscribe() *subscription    { return f.nodeList.subscribe(time.Now()) }
func (f *fakeSubject) unsubscribe(s *subscription) { f.nodeList.unsubscribe(s) }
func (f *fakeSubject) Ping(ctx context.Context, id addr.NodeID) (time.Duration, error) {
	return f.ping(ctx, id)
}
func (f *fakeSubject) Keys() (Keys, error) { return Keys{Versions: []uint32{2}}, nil }
func (f *fakeSubject) RotateKey(ctx context.Context) (Keys, error) {
	return f.rotate(ctx)
}

// serveAdmin serves s on a socket of the test and returns a client for it.
func serveAdmin(t *testing.T, s subject) (*Client, string) {
	t.Helper()
	return serveAudited(t, s, nil)
}

// serveAudited is serveAdmin with an audit log.
func serveAudited(t *testing.T, s subject, to *audit.Log) (*Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := listenUnix(socketOptions{field: "admin", network: "unix", path: path, mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	a := startAdmin(l, s, zerolog.Nop(), to)
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		a.close()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return c, path
}

func TestAdminAnswers(t *testing.T) {
	f := newFakeSubject()
	c, path := serveAdmin(t, f)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("admin socket has mode %o, want 0600", got)
	}
	ctx := t.Context()
	f.findings = []Finding{{Severity: observe.Warning, Kind: observe.KindHost, Text: "the host is lost", Node: addr.NoNode}}
	if st, err := c.Status(ctx); err != nil || st.Name != "three" || !slices.Equal(st.Findings, f.findings) {
		t.Errorf("status: %v, %v", st, err)
	}
	for _, name := range TableNames {
		text, err := c.Get(ctx, name)
		if want := fmt.Sprintf(`{%q:[{"port":2050}]}`, name); err != nil || string(text) != want {
			t.Errorf("%s: got %s, %v, want %s", name, text, err, want)
		}
	}
	if _, err := c.Get(ctx, "nothing"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an unknown path: got %v, want 404", err)
	}
}

// TestNodesHaveTheFixedForm pins the JSON of `fabricd nodes --json`.
func TestNodesHaveTheFixedForm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // its clock starts at midnight of 2000-01-01
		r := newNodeList()
		r.setCluster(addr.UUID{0xab})
		empty, err := json.Marshal(r.snapshot(time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"self":65535,"cluster":"ab000000-0000-0000-0000-000000000000","nodes":[]}`; string(empty) != want {
			t.Errorf("before the lease:\ngot  %s\nwant %s", empty, want)
		}
		r.apply(membership.Event{Kind: membership.EventSelf, Node: testNode(0, 4, "host")}, time.Now())
		r.apply(membership.Event{Kind: membership.EventAdded, Node: testNode(7, 2, "seven")}, time.Now())
		r.apply(membership.Event{Kind: membership.EventRemoved, Node: membership.Node{Incarnation: addr.Incarnation{Node: 7, Generation: 2}}, Reason: membership.ReasonCrashed}, time.Now())
		got, err := json.Marshal(r.snapshot(time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		want := `{"self":0,"cluster":"ab000000-0000-0000-0000-000000000000","nodes":[` +
			`{"id":0,"generation":4,"name":"host","state":"alive","addresses":["10.0.0.1:7700"],"since":"2000-01-01T00:00:00Z"},` +
			`{"id":7,"generation":2,"name":"seven","state":"removed","addresses":["10.0.0.1:7700"],"since":"2000-01-01T00:00:00Z"}]}`
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func TestRemovedNodesAreForgottenAfterTheirQuarantine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newNodeList()
		r.apply(membership.Event{Kind: membership.EventAdded, Node: testNode(7, 2, "seven")}, time.Now())
		r.apply(membership.Event{Kind: membership.EventRemoved, Node: testNode(7, 2, "seven")}, time.Now())
		time.Sleep(removedFor)
		if n := len(r.snapshot(time.Now()).Nodes); n != 1 {
			t.Errorf("%d nodes after %v, want the removed one", n, removedFor)
		}
		time.Sleep(time.Nanosecond)
		if n := len(r.snapshot(time.Now()).Nodes); n != 0 {
			t.Errorf("%d nodes after the quarantine, want none", n)
		}
	})
}

func TestHealthIsAnAnswerEvenIfBad(t *testing.T) {
	f := newFakeSubject()
	f.health = Health{Detail: "no lease yet"}
	c, _ := serveAdmin(t, f)
	h, err := c.Health(t.Context())
	if err != nil || h.Healthy || h.Detail != "no lease yet" {
		t.Errorf("got %+v, %v", h, err)
	}
}

func TestPing(t *testing.T) {
	f := newFakeSubject()
	f.ping = func(ctx context.Context, id addr.NodeID) (time.Duration, error) {
		switch id {
		case 1:
			return 1500 * time.Microsecond, nil
		case 2:
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return 0, status.NoDevice
	}
	c, _ := serveAdmin(t, f)
	if rtt, err := c.Ping(t.Context(), 1, time.Second); err != nil || rtt != 1500*time.Microsecond {
		t.Errorf("ping 1: %v, %v, want 1.5ms", rtt, err)
	}
	if _, err := c.Ping(t.Context(), 2, 10*time.Millisecond); err == nil || err.Error() != "node 2 did not answer within 10ms" {
		t.Errorf("ping of a silent node: %v", err)
	}
	if _, err := c.Ping(t.Context(), 9, time.Second); err == nil || err.Error() != "node 9: no such node, or it is not reachable" {
		t.Errorf("ping of nobody: %v", err)
	}
	for _, bad := range []string{"ping", "ping?node=a+b", "ping?node=65536", "ping?node=1&timeout=-1s", "ping?node=1&timeout=2h"} {
		if _, err := c.Get(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "want a") {
			t.Errorf("%s: got %v, want what is allowed", bad, err)
		}
	}
}

func TestEventsBeginWithTheCurrentNodes(t *testing.T) {
	f := newFakeSubject()
	c, _ := serveAdmin(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	err := c.Events(ctx, func(e NodeEvent) error {
		got = append(got, fmt.Sprint(e.Event, " ", e.Node.ID, ".", e.Node.Generation, " ", e.Reason))
		switch len(got) {
		case 1:
			f.apply(membership.Event{Kind: membership.EventAdded, Node: testNode(4, 1, "four")}, time.Now())
			f.apply(membership.Event{Kind: membership.EventRemoved, Node: testNode(4, 1, "four"), Reason: membership.ReasonLeft}, time.Now())
		case 3:
			cancel()
		}
		return nil
	})
	if want := "[current 3.1  added 4.1  removed 4.1 left]"; fmt.Sprint(got) != want || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v, want %s and the context's end", got, err, want)
	}
}

func TestEventStreamsEndWithTheNode(t *testing.T) {
	f := newFakeSubject()
	c, _ := serveAdmin(t, f)
	err := c.Events(t.Context(), func(e NodeEvent) error { f.nodeList.close(); return nil })
	if err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
	err = c.Events(t.Context(), func(NodeEvent) error { return nil })
	if err != io.EOF {
		t.Errorf("after the end: got %v, want io.EOF", err)
	}
}

func TestSlowReadersAreCutOffAndDelayNobody(t *testing.T) {
	r := newNodeList()
	slow, quick := r.subscribe(time.Now()), r.subscribe(time.Now())
	for i := range subscriberQueue + 1 {
		r.apply(membership.Event{Kind: membership.EventHost, Detail: fmt.Sprint(i)}, time.Now())
		if e := <-quick.events; e.Detail != fmt.Sprint(i) {
			t.Fatalf("the quick reader got %q, want %d", e.Detail, i)
		}
	}
	n := 0
	for range slow.events {
		n++
	}
	if n != subscriberQueue || !slow.lagged {
		t.Errorf("the slow reader got %d events, lagged %v; want %d and the end", n, slow.lagged, subscriberQueue)
	}
	r.unsubscribe(slow) // a second end does nothing
	r.unsubscribe(quick)
}

// pipeListener is a listener in memory, for bubbles.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

func TestEventStreamsOutliveTheTimeouts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, l := newFakeSubject(), newPipeListener()
		a := startAdmin(l, f, zerolog.Nop(), nil)
		defer a.close()
		c := l.dial()
		defer c.Close()
		fmt.Fprintf(c, "GET /v1/events HTTP/1.1\r\nHost: fabricd\r\n\r\n")
		lines := bufio.NewScanner(c)
		until := func(word string) {
			t.Helper()
			for lines.Scan() {
				if strings.Contains(lines.Text(), word) {
					return
				}
			}
			t.Fatalf("the stream ended before %q: %v", word, lines.Err())
		}
		until(`"current"`)
		time.Sleep(24 * time.Hour)
		f.apply(membership.Event{Kind: membership.EventAdded, Node: testNode(4, 1, "four")}, time.Now())
		until(`"added"`)
	})
}

func TestSilentClientsAreDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newPipeListener()
		a := startAdmin(l, newFakeSubject(), zerolog.Nop(), nil)
		defer a.close()
		c := l.dial()
		defer c.Close()
		began := time.Now()
		fmt.Fprintf(c, "GET /v1/status HTTP/1.1\r\n") // and no more
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != adminTimeout {
			t.Errorf("dropped after %v, want %v", took, adminTimeout)
		}
	})
}

func TestConnectionsAreLimited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newPipeListener()
		a := startAdmin(l, newFakeSubject(), zerolog.Nop(), nil)
		defer a.close()
		for range adminConns {
			defer l.dial().Close()
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			l.dial().Close()
		}()
		synctest.Wait()
		select {
		case <-served:
			t.Errorf("connection %d was accepted", adminConns+1)
		default:
		}
		time.Sleep(adminTimeout) // the silent ones make room
		<-served
	})
}

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	opts := socketOptions{field: "socket", network: "unixpacket", path: filepath.Join(dir, "made", "s"), mode: 0o660}
	l, err := listenUnix(opts)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(opts.path); info.Mode().Perm() != 0o660 {
		t.Errorf("mode %o, want 0660", info.Mode().Perm())
	}
	refused := func(o socketOptions, want string) {
		t.Helper()
		l, err := listenUnix(o)
		if err == nil {
			l.Close()
		}
		if lines := configError(t, err); len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("got %q, want one line with %q", lines, want)
		}
	}
	refused(opts, "another fabricd listens there")
	l.SetUnlinkOnClose(false) // as SIGKILL leaves it
	l.Close()
	l, err = listenUnix(opts)
	if err != nil {
		t.Fatalf("a dead fabricd's socket is in the way: %v", err)
	}
	l.Close()

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(socketOptions{field: "socket", network: "unixpacket", path: file}, "exists and is not a socket")
	refused(socketOptions{field: "socket", network: "unixpacket", path: filepath.Join(file, "s")}, "its directory cannot be made: not a directory")
	refused(socketOptions{field: "socket", network: "unixpacket", path: filepath.Join(dir, "g"), group: "no such group"}, "no such group")
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file was removed: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := sockfile.SetRights(link, 0o666, os.Getgid()); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("the rights of a link in the socket's place: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file that the link leads to: %v, %v", info.Mode(), err)
	}
}
