package e2e

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

// stepLimit bounds steps that take milliseconds on an idle machine.
const stepLimit = 15 * time.Second

// A lab is one cluster: a directory, a loopback address, and its processes.
// Owned by the test's goroutine.
type lab struct {
	t     testing.TB
	dir   string
	ip    string
	token string // file with a join token, once there is a host
	nodes []*node
	// hostExe is the program of the host; empty: the one of this build.
	hostExe string
	// valves makes every node that is launched speak through a valve.
	valves bool
	// providers are those of every node that is prepared; empty: the node chooses.
	providers string
	// env holds further environment variables of every node that is launched.
	env []string

	mu  sync.Mutex // guards the fields below
	all []*process
}

var (
	labs  atomic.Uint32
	ports atomic.Uint32
)

// newLab makes a lab that ends with t.
func newLab(t testing.TB) *lab {
	t.Helper()
	i := labs.Add(1)
	l := &lab{t: t, dir: filepath.Join(rootDir, fmt.Sprintf("%02d", i)), ip: loopback(i), providers: os.Getenv(providersEnv)}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// overEach runs a test, in a lab of its own each, over the nodes' choice, which is
// QUIC where packets pass, and over TCP alone; over one provider alone if the environment
// names it.
func overEach(t *testing.T, test func(l *lab)) {
	t.Parallel()
	ways := map[string]string{"chosen": "", "tcp": "tcp"}
	if p := os.Getenv(providersEnv); p != "" {
		ways = map[string]string{p: p}
	}
	for name, providers := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.providers = providers
			test(l)
		})
	}
}

// loopback returns the i-th loopback address of this process: no two test
// processes that run at a time meet on one.
func loopback(i uint32) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+(pid>>8)%128, pid&0xff, 1+i%125)
}

// freePort returns a port that is unused, neither by UDP nor by TCP, outside the
// range from which the kernel chooses: a node that is started again finds its
// port free.
func (l *lab) freePort() int {
	for range 1000 {
		port := 20000 + int(ports.Add(1))%8000
		at := fmt.Sprintf("%s:%d", l.ip, port)
		stream, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		packets, err := net.ListenPacket("udp", at)
		stream.Close()
		if err == nil {
			packets.Close()
			return port
		}
	}
	l.t.Fatal("no free port")
	return 0
}

// close ends the running processes. If the test failed it shows the end of all logs.
func (l *lab) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		n.admin.Close()
	}
	for _, p := range l.all {
		p.kill()
	}
	if !l.t.Failed() {
		return
	}
	logs, err := filepath.Glob(filepath.Join(l.dir, "*.log"))
	if err != nil {
		l.t.Error(err)
	}
	for _, log := range logs {
		l.t.Logf("--- %s\n%s", filepath.Base(log), tail(log, 12))
	}
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// spawn starts cmd as a process of the lab, whose log is called name.
func (l *lab) spawn(name string, cmd *exec.Cmd) *process {
	l.t.Helper()
	p, err := spawn(cmd, filepath.Join(l.dir, name+".log"))
	if err != nil {
		l.t.Fatalf("start %s: %v", name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, p)
	return p
}

// application starts this binary in a role that talks line by line.
func (l *lab) application(name, role string, args ...string) *application {
	l.t.Helper()
	cmd := command(role, args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	// A pipe of our own: that of exec is closed by Wait before all was read.
	r, w, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.Stdout = w
	a := &application{stdin: stdin, lines: make(chan string, 16), process: l.spawn(name, cmd)} // a role says fewer
	w.Close()
	go func() { // ends with the application, which has the only other end
		defer close(a.lines)
		defer r.Close()
		for in := bufio.NewScanner(r); in.Scan(); {
			a.lines <- in.Text()
		}
	}()
	return a
}

// fabricd runs a command of fabricd that ends by itself and returns its
// output.
func (l *lab) fabricd(args ...string) (stdout string, err error) {
	cmd := exec.Command(fabricdExe, args...)
	cmd.Env = environ()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := theSpawner.start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("fabricd %s: %w: %s", args[0], err, errs.String())
	}
	return out.String(), nil
}

// environ is the environment of every fabricd: without settings of the user's. A
// panic that serving a peer meets ends the process, and so fails the test.
func environ() []string {
	own := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FABRIC_") })
	return append(own, "GOTRACEBACK=all", "FABRICD_PANIC=crash")
}

// A node is one fabricd of a lab, over all its incarnations.
type node struct {
	l            *lab
	name         string
	dir          string
	args         []string // of `fabricd run`
	data, gossip int      // ports, the same in every incarnation
	prefix       []string // the program that runs fabricd: none, or a shell that sets limits
	exe          string   // the program; empty: the one of this build
	admin        *daemon.Client
	*process            // of the last incarnation
	valve        *valve // of that process; nil unless the lab has valves
	place        daemon.Status
}

// prepare makes a node that does not run. args come behind the usual ones and
// override them.
func (l *lab) prepare(name string, args ...string) *node {
	l.t.Helper()
	n := &node{l: l, name: name, dir: filepath.Join(l.dir, name), data: l.freePort(), gossip: l.freePort()}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	n.admin = daemon.NewClient(n.adminSocket())
	n.args = append([]string{"run", "--name", name, "--state-dir", n.stateDir(), "--bind", l.ip,
		"--data-port", fmt.Sprint(n.data), "--gossip-port", fmt.Sprint(n.gossip), "--detection", "fast",
		"--socket", n.socket(), "--admin", n.adminSocket(), "--log-format", "json", "--log-level", "info"}, args...)
	own := slices.Contains(args, "--providers") // of a test that is about them
	if l.providers != "" && !own {
		n.args = append(n.args, "--providers", l.providers)
	}
	l.nodes = append(l.nodes, n)
	return n
}

func (n *node) socket() string      { return filepath.Join(n.dir, "app.sock") }
func (n *node) adminSocket() string { return filepath.Join(n.dir, "admin.sock") }
func (n *node) stateDir() string    { return filepath.Join(n.dir, "state") }
func (n *node) addr() string        { return fmt.Sprintf("%s:%d", n.l.ip, n.data) }

// host makes and starts the lab's host.
func (l *lab) host(args ...string) *node {
	l.t.Helper()
	n := l.prepare("host-node", append([]string{"--role", "host"}, args...)...)
	l.token = filepath.Join(l.dir, "join.token")
	if _, err := l.fabricd("init", "--name", n.name, "--state-dir", n.stateDir(), "--token-file", l.token); err != nil {
		l.t.Fatal(err)
	}
	n.exe = l.hostExe
	n.start()
	return n
}

// member makes a node that joins host; it does not run yet.
func (l *lab) member(host *node, name string, args ...string) *node {
	l.t.Helper()
	return l.prepare(name, append([]string{"--join", host.addr(), "--token-file", l.token}, args...)...)
}

// cluster makes a host and members with args, and waits until every node knows every other.
func (l *lab) cluster(members int, args ...string) []*node {
	l.t.Helper()
	all := []*node{l.host(args...)}
	for i := range members {
		n := l.member(all[0], fmt.Sprintf("member-%d", i+1), args...)
		n.start()
		all = append(all, n)
	}
	l.agree(all...)
	return all
}

// launch starts n's fabricd and does not wait for anything.
func (n *node) launch() {
	n.l.t.Helper()
	argv := append(slices.Clone(n.prefix), append([]string{cmp.Or(n.exe, fabricdExe)}, n.args...)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(environ(), n.l.env...)
	if n.l.valves {
		v, err := newValve(filepath.Join(n.l.dir, n.name+".log"))
		if err != nil {
			n.l.t.Fatal(err)
		}
		cmd.Stderr, n.valve = v.w, v
		defer v.w.Close()
	}
	n.process = n.l.spawn(n.name, cmd)
}

// start starts n's fabricd and waits until it has its place in the cluster.
func (n *node) start() {
	n.l.t.Helper()
	n.launch()
	n.joined()
}

// joined waits until n has its place in the cluster.
func (n *node) joined() {
	n.l.t.Helper()
	eventually(n.l.t, stepLimit, n.name+" joins", func() error {
		if !n.running() {
			return fmt.Errorf("%w: it ended: %v", errGiveUp, n.err)
		}
		st, err := n.status()
		if err == nil && st.State != "joined" {
			err = fmt.Errorf("it is %s: %s", st.State, st.Detail)
		}
		n.place = st
		return err
	})
}

func (n *node) status() (daemon.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	return n.admin.Status(ctx)
}

// incarnation returns the incarnation that n had when it was last started.
func (n *node) incarnation() fabric.Incarnation {
	return fabric.Incarnation{Node: n.place.ID, Generation: n.place.Generation}
}

func (n *node) at(port fabric.Port) fabric.Addr { return fabric.Addr{Node: n.place.ID, Port: port} }

// incarnations returns those that n holds for alive, as text.
func (n *node) incarnations() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	all, err := n.admin.Nodes(ctx)
	var incarnations []string
	for _, info := range all.Nodes {
		if info.State == "alive" {
			incarnations = append(incarnations, fabric.Incarnation{Node: info.ID, Generation: info.Generation}.String())
		}
	}
	slices.Sort(incarnations)
	return strings.Join(incarnations, " "), err
}

// agree waits until each of nodes holds exactly their incarnations for alive.
func (l *lab) agree(nodes ...*node) {
	l.t.Helper()
	var incarnations []string
	for _, n := range nodes {
		incarnations = append(incarnations, n.incarnation().String())
	}
	slices.Sort(incarnations)
	want := strings.Join(incarnations, " ")
	for _, n := range nodes {
		eventually(l.t, stepLimit, n.name+" knows all", func() error {
			got, err := n.incarnations()
			if err == nil && got != want {
				err = fmt.Errorf("%s sees %s, want %s", n.name, got, want)
			}
			return err
		})
	}
}

// attach attaches an application that ends with the test.
func (n *node) attach() *fabric.Node {
	n.l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	app, err := fabric.Attach(ctx, n.socket())
	if err != nil {
		n.l.t.Fatalf("attach to %s: %v", n.name, err)
	}
	n.l.t.Cleanup(func() { _ = app.Close() }) // its fabricd may have ended
	return app
}

// seen is one node event and when it came.
type seen struct {
	fabric.Event
	at time.Time
}

// A watcher is an application that watches the nodes.
type watcher struct {
	t    testing.TB
	name string
	app  *fabric.Node

	mu  sync.Mutex // guards all
	all []seen     // in the order in which they came
}

// watch attaches a watcher that ends with the test.
func (n *node) watch() *watcher {
	n.l.t.Helper()
	w := &watcher{t: n.l.t, name: n.name, app: n.attach()}
	w.t.Cleanup(w.app.OnEvent(func(ev fabric.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = append(w.all, seen{ev, time.Now()})
	}))
	return w
}

// events returns the events so far.
func (w *watcher) events() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// words returns the events so far, without reasons: "2.1 removed, 2.2 added".
func (w *watcher) words() string {
	var words []string
	for _, ev := range w.events() {
		what := "added"
		if ev.Kind == fabric.NodeRemoved {
			what = "removed"
		}
		words = append(words, fmt.Sprintf("%d.%d %s", ev.Node, ev.Generation, what))
	}
	return strings.Join(words, ", ")
}

// removed waits until incarnation was removed and returns that event.
func (w *watcher) removed(limit time.Duration, incarnation fabric.Incarnation) seen {
	w.t.Helper()
	return w.find(limit, fabric.NodeRemoved, incarnation)
}

// added waits until incarnation was added and returns that event.
func (w *watcher) added(limit time.Duration, incarnation fabric.Incarnation) seen {
	w.t.Helper()
	return w.find(limit, fabric.NodeAdded, incarnation)
}

func (w *watcher) find(limit time.Duration, kind fabric.EventKind, incarnation fabric.Incarnation) (found seen) {
	w.t.Helper()
	eventually(w.t, limit, fmt.Sprintf("%s sees event %d of %v", w.name, kind, incarnation), func() error {
		for _, ev := range w.events() {
			if ev.Kind == kind && (fabric.Incarnation{Node: ev.Node, Generation: ev.Generation}) == incarnation {
				found = ev
				return nil
			}
		}
		return errors.New("it has seen: " + w.words())
	})
	return found
}

// saw fails the test unless exactly the events of want came.
func (w *watcher) saw(want string) {
	w.t.Helper()
	if got := w.words(); got != want {
		w.t.Errorf("%s saw %q, want %q", w.name, got, want)
	}
}

// within returns a context for one step.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
