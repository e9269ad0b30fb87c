package appsmoke

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
)

const (
	stepLimit = 20 * time.Second // for steps that take a second on an idle machine
	pollEvery = 5 * time.Millisecond
)

// A side is one machine of the lab: a network namespace with a fabricd.
type side struct {
	name, ns, ip string
	dir          string // of its fabricd, a new one for each cluster
	exe          string // of its fabricd: this build, or the other one
	args         []string
	admin        *daemon.Client
	fabricd      *process
}

func (s *side) socket() string      { return filepath.Join(s.dir, "app.sock") }
func (s *side) adminSocket() string { return filepath.Join(s.dir, "admin.sock") }

// A lab is two machines with a cable between them: the clients' and the servers'. The
// servers' fabricd is the cluster's host.
type lab struct {
	t                testing.TB
	dir              string
	exe, self        string // fabricd, and this binary
	clients, servers *side
	largeSum         [sha256.Size]byte // of the large file of nginx
}

// newLab makes the namespaces. They end with t.
func newLab(t testing.TB, exe string) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "appsmoke-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir, exe: exe, self: self}
	if err := os.Chmod(dir, 0o755); err != nil { // for the servers' user
		t.Fatal(err)
	}
	sweep()
	l.clients, l.servers = l.side("clients", "10.79.0.1"), l.side("servers", "10.79.0.2")
	l.must("ip", "-n", l.clients.ns, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", l.servers.ns)
	for _, s := range []*side{l.clients, l.servers} {
		l.must("ip", "-n", s.ns, "addr", "add", s.ip+"/24", "dev", "eth0")
		l.must("ip", "-n", s.ns, "link", "set", "eth0", "up")
		l.must("ip", "-n", s.ns, "link", "set", "lo", "up")
	}
	return l
}

// nsPrefix and this process's ID begin the names of its namespaces.
const nsPrefix = "appsmoke-"

func (l *lab) side(name, ip string) *side {
	s := &side{name: name, ns: fmt.Sprintf("%s%d-%s", nsPrefix, os.Getpid(), name), ip: ip}
	l.must("ip", "netns", "add", s.ns)
	l.t.Cleanup(func() {
		if err := quiet("ip", "netns", "del", s.ns); err != nil {
			l.t.Error(err)
		}
	})
	return s
}

// sweep removes the namespaces of runs that were killed.
func sweep() {
	all, _ := filepath.Glob("/run/netns/" + nsPrefix + "*") // the pattern is a good one
	for _, path := range all {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, nsPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); err != nil {
			_ = quiet("ip", "netns", "del", name) // another run sweeps as well
		}
	}
}

// quiet runs a command and returns its output in the error if it failed.
func quiet(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (l *lab) must(argv ...string) {
	l.t.Helper()
	if err := quiet(argv...); err != nil {
		l.t.Fatal(err)
	}
}

// cut takes the clients' interface down for d: their fabricd's sends fail, the other
// one receives nothing.
func (l *lab) cut(d time.Duration) error {
	if err := quiet("ip", "-n", l.clients.ns, "link", "set", "eth0", "down"); err != nil {
		return err
	}
	time.Sleep(d)
	return quiet("ip", "-n", l.clients.ns, "link", "set", "eth0", "up")
}

// inside returns a command in s's namespace, which ends with this process.
func (s *side) inside(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", s.ns}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // for output that children of a killed command keep open
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// cluster starts the two fabricds anew over a provider.
func (l *lab) cluster(provider string) error {
	token := filepath.Join(l.dir, provider+"-token")
	for _, s := range []*side{l.servers, l.clients} {
		s.dir = filepath.Join(l.dir, provider+"-"+s.name)
		if err := os.MkdirAll(s.dir, 0o755); err != nil {
			return err
		}
		s.exe = l.exe
		admin := s.adminSocket()
		s.admin = daemon.NewClient(admin)
		s.args = []string{"run", "--state-dir", filepath.Join(s.dir, "state"), "--bind", s.ip, "--providers", provider,
			"--socket", s.socket(), "--admin", admin, "--log-format", "json", "--token-file", token}
	}
	l.servers.args = append(l.servers.args, "--role", "host", "--name", "servers", "--expose", exposes)
	l.clients.args = append(l.clients.args, "--join", l.servers.ip+":7700", "--name", "clients", "--forward", forwards)
	if err := quiet(l.exe, "init", "--name", "servers", "--state-dir", filepath.Join(l.servers.dir, "state"), "--token-file", token); err != nil {
		return err
	}
	for _, s := range []*side{l.servers, l.clients} {
		if err := errors.Join(l.launch(s), l.joined(s)); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the fabricd of s.
func (l *lab) launch(s *side) error {
	p, err := start(s.inside(context.Background(), append([]string{s.exe}, s.args...)...), filepath.Join(s.dir, "fabricd.log"))
	s.fabricd = p
	return err
}

// joined waits until the fabricd of s is in the cluster.
func (l *lab) joined(s *side) error {
	return await(stepLimit, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
		defer cancel()
		st, err := s.admin.Status(ctx)
		if err == nil && st.State != "joined" {
			err = fmt.Errorf("the %s' fabricd is %s: %s", s.name, st.State, st.Detail)
		}
		return err
	})
}

// await calls check until it succeeds, and returns its last error after limit.
func await(limit time.Duration, check func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// A process is a child of this one.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it was waited for
	err  error         // of the wait; read after done
}

// start starts cmd. Its output is appended to the file log, unless it has an output.
func start(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stderr = f
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the child, which end waits for
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // fails only for one that has ended

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end sends s, waits for the end, and kills the process if it does not end.
func (p *process) end(s syscall.Signal) error {
	p.signal(s)
	select {
	case <-p.done:
		return nil
	case <-time.After(stepLimit):
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s: still running %v after %v", p.cmd.Args, stepLimit, s)
	}
}

// role returns a command that runs this binary in a role in s's namespace.
func (l *lab) role(s *side, name string, args ...string) *exec.Cmd {
	cmd := s.inside(context.Background(), append([]string{l.self}, args...)...)
	cmd.Env = append(cmd.Env, roleEnv+"="+name)
	return cmd
}
