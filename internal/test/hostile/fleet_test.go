package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
)

// fabricdEnv names the fabricd that fleets run; empty: one is built from this tree.
const fabricdEnv = "FABRICD_ATTACK_EXE"

// startLimit bounds the start of a daemon on a machine that has much to do.
const startLimit = 60 * time.Second

// A fleet is a cluster of fabricd processes on one loopback address: a host and
// plain nodes, started as an operator starts them. It ends with its test.
type fleet struct {
	tb      testing.TB
	exe     string
	dir, ip string
	nodes   []*machine  // the host first
	spawn   chan func() // runs on the thread that all processes are children of
}

// A machine is one fabricd of a fleet, over all its starts.
type machine struct {
	f            *fleet
	name, dir    string
	args         []string // of `fabricd run`
	data, gossip int      // ports, the same at every start
	admin        *daemon.Client

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process was waited for
	spare bool          // an attack may stop or kill it: it is no honest node that must live on

	mu   sync.Mutex       // guards the fields below
	live addr.Incarnation // as it was last found good
	uuid addr.UUID
}

var fleets, fleetPorts atomic.Uint32

// buildFabricd returns the path of a fabricd of this tree. Every fleet of this
// process runs the same.
var buildFabricd = sync.OnceValues(func() (string, error) {
	if exe := os.Getenv(fabricdEnv); exe != "" {
		return filepath.Abs(exe)
	}
	dir, err := os.MkdirTemp("", "fabricd-hostile-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	exe := filepath.Join(dir, "fabricd")
	build := exec.Command("go", "build", "-trimpath", "-o", exe, "github.com/fabricd/fabricd/cmd/fabricd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build fabricd: %w\n%s", err, out)
	}
	return exe, nil
})

// builtIn is the directory of the fabricd that was built, for TestMain to remove.
var builtIn string

// newFleet starts a host and plain nodes, the last of them a spare, and waits until
// all know each other.
func newFleet(tb testing.TB, plain int) *fleet {
	tb.Helper()
	exe, err := buildFabricd()
	if err != nil {
		tb.Fatal(err)
	}
	i, pid := fleets.Add(1), os.Getpid()
	dir, err := os.MkdirTemp("", "ff") // short, for the paths of sockets
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // applications of other users attach
		tb.Fatal(err)
	}
	f := &fleet{tb: tb, exe: exe, dir: dir, ip: fmt.Sprintf("127.%d.%d.%d", 64+(pid>>8)%128, pid&0xff, 130+i%100), spawn: make(chan func())}
	go func() { // the kernel kills a child with the thread that has started it
		runtime.LockOSThread()
		for start := range f.spawn {
			start()
		}
	}()
	tb.Cleanup(f.close)
	f.add("host", "--role", "host", "--certificate-validity", "1m") // so that expiry can be waited for
	if _, err := f.fabricd("init", "--name", "host", "--state-dir", f.host().state(), "--token-file", f.initToken()); err != nil {
		tb.Fatal(err)
	}
	f.must(f.host().start())
	for n := range plain {
		name := fmt.Sprintf("n%d", n+1)
		if n == plain-1 {
			name = "spare"
		}
		m := f.member(name)
		m.spare = name == "spare"
		f.must(m.start())
	}
	f.must(f.agree(startLimit))
	return f
}

func (f *fleet) must(err error) {
	f.tb.Helper()
	if err != nil {
		f.tb.Fatal(err)
	}
}

func (f *fleet) host() *machine    { return f.nodes[0] }
func (f *fleet) initToken() string { return filepath.Join(f.dir, "init.token") }

// spare returns the node that attacks may stop and kill.
func (f *fleet) spare() *machine {
	i := slices.IndexFunc(f.nodes, func(m *machine) bool { return m.name == "spare" })
	return f.nodes[i]
}

// honest returns the nodes that must live on, whatever is attacked.
func (f *fleet) honest() (list []*machine) {
	for _, m := range f.nodes {
		if !m.spare {
			list = append(list, m)
		}
	}
	return list
}

// add prepares a node; args come behind the usual ones.
func (f *fleet) add(name string, args ...string) *machine {
	f.tb.Helper()
	m := &machine{f: f, name: name, dir: filepath.Join(f.dir, name), data: f.freePort(), gossip: f.freePort()}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		f.tb.Fatal(err)
	}
	m.admin = daemon.NewClient(m.adminSocket())
	m.args = append([]string{"run", "--name", name, "--state-dir", m.state(), "--bind", f.ip, "--detection", "normal",
		"--data-port", fmt.Sprint(m.data), "--gossip-port", fmt.Sprint(m.gossip),
		"--socket", m.socket(), "--socket-mode", "0666", "--admin", m.adminSocket(), "--log-format", "json"}, args...)
	f.nodes = append(f.nodes, m)
	return m
}

// member prepares a node that joins with a token of its own, as from an operator that
// keeps to the defaults.
func (f *fleet) member(name string) *machine {
	f.tb.Helper()
	file := filepath.Join(f.dir, name+".token")
	if _, err := f.fabricd("token", "create", "--uses", "1", "--ttl", "1h", "--token-file", file, "--admin", f.host().adminSocket()); err != nil {
		f.tb.Fatal(err)
	}
	return f.add(name, "--join", f.host().address(), "--token-file", file)
}

// token makes a join token for n nodes.
func (f *fleet) token(n int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, err := f.host().admin.CreateToken(ctx, daemon.TokenRequest{Lifetime: "1h", Uses: n})
	return t.Token, err
}

// fabricd runs a command that ends by itself and returns its output.
func (f *fleet) fabricd(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.exe, args...)
	cmd.Env = environment()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("fabricd %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// environment is that of every fabricd: without settings of the user's, and so that
// a panic in a goroutine that serves a peer ends the process, which every attack counts.
func environment() (own []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FABRIC_") {
			own = append(own, kv)
		}
	}
	return append(own, "GOTRACEBACK=all", "FABRICD_PANIC=crash")
}

// freePort returns a port without a user, outside of the kernel's own range.
func (f *fleet) freePort() int {
	for range 1000 {
		port := 20000 + int(fleetPorts.Add(1))%8000
		at := fmt.Sprintf("%s:%d", f.ip, port)
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
	f.tb.Fatal("no free port")
	return 0
}

// close ends the running nodes; a test that has failed shows the end of the logs.
func (f *fleet) close() {
	for _, m := range f.nodes {
		m.kill()
		m.admin.Close()
		if log := m.log(); f.tb.Failed() && len(log) > 0 {
			lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
			f.tb.Logf("--- %s\n%s", m.name, bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
		}
	}
	close(f.spawn)
	os.RemoveAll(f.dir)
}

// agree waits until every node that runs holds exactly the incarnations of all
// that run for alive, bad members aside.
func (f *fleet) agree(limit time.Duration) error {
	return eventually(limit, func() error {
		for _, m := range f.nodes {
			if !m.running() {
				continue
			}
			alive, err := m.alive()
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			for _, o := range f.nodes {
				if o.running() && !alive[o.incarnation()] {
					return fmt.Errorf("%s does not hold %s (%v) for alive", m.name, o.name, o.incarnation())
				}
			}
		}
		return nil
	})
}

// check returns an error for honest processes and incarnations that have ended, though
// they should not have.
func (f *fleet) check() error {
	var errs []error
	for _, m := range f.honest() {
		switch st, err := m.status(); {
		case !m.running():
			errs = append(errs, fmt.Errorf("%s died: %s", m.name, m.lastWords()))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s does not answer: %w", m.name, err))
		case incarnationOf(st) != m.incarnation():
			errs = append(errs, fmt.Errorf("%s lived as %v and is now %v", m.name, m.incarnation(), incarnationOf(st)))
		}
	}
	return errors.Join(errs...)
}

// repairLimit bounds how long a cluster may take to come together again.
const repairLimit = 20 * time.Second

// repair starts nodes that have ended and records new incarnations, for the next
// attack.
func (f *fleet) repair() error {
	for _, m := range f.nodes {
		if !m.running() {
			if err := m.launch(); err != nil {
				return err
			}
		}
	}
	for _, m := range f.nodes {
		err := m.joinedWithin(repairLimit)
		if err != nil && m.spare { // its identity may be lost for good
			err = f.replace(m)
		}
		if err != nil {
			return err
		}
	}
	return f.agree(repairLimit)
}

// replace starts m anew, with another identity.
func (f *fleet) replace(m *machine) error {
	m.kill()
	if err := os.RemoveAll(m.state()); err != nil {
		return err
	}
	token, err := f.token(1)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.dir, m.name+".token"), []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	return m.start()
}

func (m *machine) state() string       { return filepath.Join(m.dir, "state") }
func (m *machine) socket() string      { return filepath.Join(m.dir, "app") }
func (m *machine) adminSocket() string { return filepath.Join(m.dir, "admin") }
func (m *machine) logFile() string     { return filepath.Join(m.dir, "log") }
func (m *machine) address() string     { return fmt.Sprintf("%s:%d", m.f.ip, m.data) }
func (m *machine) gossips() string     { return fmt.Sprintf("%s:%d", m.f.ip, m.gossip) }

func (m *machine) log() []byte {
	b, _ := os.ReadFile(m.logFile()) // none yet: it has said nothing
	return b
}

// lastWords returns how a daemon that has died said why.
func (m *machine) lastWords() string {
	for line := range bytes.Lines(m.log()) {
		if bytes.HasPrefix(line, []byte("panic:")) || bytes.HasPrefix(line, []byte("fatal error:")) {
			return string(bytes.TrimSpace(line))
		}
	}
	return "without a word"
}

// start starts the daemon and waits until it has its ID.
func (m *machine) start() error {
	if err := m.launch(); err != nil {
		return err
	}
	return m.joined()
}

// nofile is how many descriptors a daemon has, as under systemd.
const nofile = 1024

// launch starts the daemon and waits for nothing.
func (m *machine) launch() error {
	log, err := os.OpenFile(m.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, nofile), m.f.exe}, m.args...)...)
	cmd.Env, cmd.Stderr, cmd.Stdout = environment(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	begun := make(chan error)
	m.f.spawn <- func() { begun <- cmd.Start() }
	if err := <-begun; err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // ends with the process, which close kills
		defer close(ended)
		_ = cmd.Wait() // how it ended, its log says
	}()
	m.cmd, m.ended = cmd, ended
	return nil
}

// joined waits until the daemon has its ID and takes note of it.
func (m *machine) joined() error { return m.joinedWithin(startLimit) }

func (m *machine) joinedWithin(limit time.Duration) error {
	err := eventually(limit, func() error {
		if !m.running() {
			return fmt.Errorf("%w: it ended: %s", errGiveUp, m.lastWords())
		}
		st, err := m.status()
		if err == nil && st.State != "joined" {
			err = fmt.Errorf("it is %s: %s", st.State, st.Detail)
		}
		if err != nil {
			return err
		}
		uuid, err := addr.ParseUUID(st.Node)
		m.mu.Lock()
		m.live, m.uuid = incarnationOf(st), uuid
		m.mu.Unlock()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s does not join: %w", m.name, err)
	}
	return nil
}

func incarnationOf(st daemon.Status) addr.Incarnation {
	return addr.Incarnation{Node: st.ID, Generation: st.Generation}
}

// incarnation returns the incarnation that the node had when it was last found good.
func (m *machine) incarnation() addr.Incarnation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

func (m *machine) pid() int { return m.cmd.Process.Pid }

func (m *machine) running() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// kill ends the daemon with SIGKILL and waits for that.
func (m *machine) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // fails only for one that has ended
	<-m.ended
}

// pause stops the daemon as a machine that hangs does; resume lets it go on.
func (m *machine) pause() error  { return m.cmd.Process.Signal(syscall.SIGSTOP) }
func (m *machine) resume() error { return m.cmd.Process.Signal(syscall.SIGCONT) }

func (m *machine) status() (daemon.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return m.admin.Status(ctx)
}

// list returns the nodes that the daemon knows.
func (m *machine) list() ([]daemon.NodeInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	all, err := m.admin.Nodes(ctx)
	return all.Nodes, err
}

// alive returns the incarnations that the daemon does not hold for removed.
func (m *machine) alive() (map[addr.Incarnation]bool, error) {
	all, err := m.list()
	alive := map[addr.Incarnation]bool{}
	for _, n := range all {
		if n.State != "removed" {
			alive[addr.Incarnation{Node: n.ID, Generation: n.Generation}] = true
		}
	}
	return alive, err
}

// ping has the daemon reach another node over the data path.
func (m *machine) ping(id addr.NodeID, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Second)
	defer cancel()
	_, err := m.admin.Ping(ctx, id, limit)
	return err
}

// usage is the memory, descriptors and so on that a process holds.
type usage struct {
	RSS         int64 // bytes
	Descriptors int
	CPU         time.Duration // used since its start
}

// usage returns the daemon's usage now; zeros if it is gone.
func (m *machine) usage() (u usage) {
	proc := fmt.Sprintf("/proc/%d/", m.pid())
	if b, err := os.ReadFile(proc + "statm"); err == nil {
		var size int64
		_, _ = fmt.Sscan(string(b), &size, &u.RSS)
		u.RSS *= int64(os.Getpagesize())
	}
	if list, err := os.ReadDir(proc + "fd"); err == nil {
		u.Descriptors = len(list)
	}
	if b, err := os.ReadFile(proc + "stat"); err == nil {
		_, rest, _ := strings.Cut(string(b), ") ")
		if field := strings.Fields(rest); len(field) > 12 {
			var user, system time.Duration
			_, _ = fmt.Sscan(field[11]+" "+field[12], &user, &system)
			u.CPU = (user + system) * 10 * time.Millisecond // USER_HZ is 100 on every Linux
		}
	}
	return u
}

// most returns the largest usage of all daemons, each figure for itself.
func (f *fleet) most() (u usage) {
	for _, m := range f.nodes {
		if m.running() {
			x := m.usage()
			u = usage{RSS: max(u.RSS, x.RSS), Descriptors: max(u.Descriptors, x.Descriptors), CPU: max(u.CPU, x.CPU)}
		}
	}
	return u
}

// errGiveUp in the error of eventually's check ends the wait at once.
var errGiveUp = errors.New("there is no use in waiting")

// eventually calls check until it returns nil, and returns its last error after
// limit: another process's state has no event to wait for.
func eventually(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || errors.Is(err, errGiveUp) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
