package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A fleet is a cluster of fabricd processes on the loopback interface. It runs on one goroutine,
// locked to its thread: the children die with it, however this process ends. It leaves no process
// and no file behind.
type fleet struct {
	exe     string
	dir     string
	options []string // further flags of every daemon
	daemons []*daemon
}

// A daemon is one member of a fleet in all its incarnations; the first is the host.
type daemon struct {
	name string
	dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended; nil before the first start
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "app.sock") }

func (d *daemon) running() bool {
	if d.done == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// findFabricd returns the program to run: path, or the one in this program's folder, or in ./bin,
// or on $PATH.
func findFabricd(path string) (string, error) {
	if path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", usagef("--fabricd %s: %v", path, err)
		}
		return filepath.Abs(found)
	}
	var tried []string
	if self, err := os.Executable(); err == nil {
		tried = append(tried, filepath.Join(filepath.Dir(self), "fabricd"))
	}
	for _, candidate := range append(tried, filepath.Join("bin", "fabricd"), "fabricd") {
		if found, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", usagef("fabricd is not beside fabric-bench, in ./bin or on $PATH: `make build` builds it, --fabricd names it")
}

// newFleet makes a cluster and starts n daemons, which see each other when it
// returns.
func newFleet(ctx context.Context, exe string, n int, options ...string) (_ *fleet, err error) {
	dir, err := os.MkdirTemp("", "fabric-bench-")
	if err != nil {
		return nil, err
	}
	f := &fleet{exe: exe, dir: dir, options: options}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, f.tails(5)), f.close())
		}
	}()
	token := filepath.Join(dir, "join.token")
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	host := f.add("host", "--role", "host", "--data-port", strconv.Itoa(port))
	out, err := childOf(f.exe, "init", "--name", "host", "--state-dir", filepath.Join(host.dir, "state"), "--token-file", token, "--token-uses", "unlimited").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("fabricd init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for i := 1; i < n; i++ {
		f.add(fmt.Sprintf("node-%d", i), "--data-port", "0", "--join", fmt.Sprintf("127.0.0.1:%d", port), "--token-file", token)
	}
	for i, d := range f.daemons {
		if err := f.start(d); err != nil {
			return nil, err
		}
		// One by one, so that the IDs are in the order of the fleet.
		if err := f.joined(ctx, d, i+1); err != nil {
			return nil, err
		}
	}
	for _, d := range f.daemons {
		if err := f.joined(ctx, d, n); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// freePort returns a port that neither TCP nor UDP uses now.
func freePort() (int, error) {
	for range 100 {
		t, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return 0, err
		}
		port := t.Addr().(*net.TCPAddr).Port
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		t.Close()
		if err == nil {
			return port, u.Close()
		}
	}
	return 0, errors.New("no port is free for both TCP and UDP")
}

func (f *fleet) add(name string, args ...string) *daemon {
	d := &daemon{name: name, dir: filepath.Join(f.dir, name)}
	d.args = append([]string{"run", "--name", name, "--state-dir", filepath.Join(d.dir, "state"),
		"--bind", "127.0.0.1", "--gossip-port", "0", "--socket", d.socket(), "--admin", filepath.Join(d.dir, "admin.sock"),
		"--log-format", "json", "--log-level", "info"}, append(args, f.options...)...)
	f.daemons = append(f.daemons, d)
	return d
}

// childOf returns a command that dies with this thread and has neither the terminal's signals nor
// fabricd's variables in its environment.
func childOf(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FABRIC_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts the daemon's next incarnation.
func (f *fleet) start(d *daemon) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = childOf(append([]string{f.exe}, d.args...)...)
	d.cmd.Stderr = log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	d.done = done
	cmd := d.cmd
	go func() { // ends with the child; kill waits for it
		defer close(done)
		// The exit status does not matter: the process is killed.
		_ = cmd.Wait()
	}()
	return nil
}

// kill kills the daemon, stopped or not, and waits for its end.
func (d *daemon) kill() {
	if !d.running() {
		return
	}
	// It fails only for a process that has ended.
	_ = d.cmd.Process.Kill()
	<-d.done
}

const (
	joinLimit = 20 * time.Second      // for a daemon to join the cluster and be seen
	pollEvery = 10 * time.Millisecond // for conditions without an event
)

// joined waits until the daemon has joined the cluster and sees n nodes there, itself included.
func (f *fleet) joined(ctx context.Context, d *daemon, n int) error {
	node, err := f.attach(ctx, d)
	if err != nil {
		return err
	}
	return errors.Join(sees(ctx, node, n), node.Close())
}

// attach attaches to the daemon as soon as it has joined the cluster.
func (f *fleet) attach(ctx context.Context, d *daemon) (*fabric.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	var node *fabric.Node
	err := untilEvery(ctx, pollEvery, func() (err error) {
		if !d.running() {
			return final{fmt.Errorf("%s has ended", d.name)}
		}
		if node == nil {
			if node, err = fabric.Attach(ctx, d.socket()); err != nil {
				return err
			}
		}
		if node.Incarnation().Generation == 0 {
			return fmt.Errorf("%s has not joined", d.name)
		}
		return nil
	})
	if err != nil && node != nil {
		node.Close()
	}
	return node, err
}

// sees waits until the node sees n nodes.
func sees(ctx context.Context, node *fabric.Node, n int) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	return untilEvery(ctx, pollEvery, func() error {
		ids, _, err := node.Nodes()
		if err != nil {
			return final{err}
		}
		if len(ids) != n {
			return fmt.Errorf("node %d sees %d nodes, want %d", node.ID(), len(ids), n)
		}
		return nil
	})
}

// final is an error that makes untilEvery give up.
type final struct{ error }

// untilEvery calls check until it succeeds or ctx is done, with a pause between
// two calls.
func untilEvery(ctx context.Context, pause time.Duration, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[final](err); ok {
			return f.error
		}
		if !wait(ctx, pause) {
			return fmt.Errorf("waited in vain: %w", err)
		}
	}
}

// wait waits for d; it reports false if ctx was done before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tails returns the last lines of every log, for a failure.
func (f *fleet) tails(lines int) string {
	var b strings.Builder
	for _, d := range f.daemons {
		text, err := os.ReadFile(filepath.Join(d.dir, "log"))
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", d.name, strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return strings.TrimSpace(b.String())
}

// close kills all daemons and removes their files.
func (f *fleet) close() error {
	for _, d := range f.daemons {
		d.kill()
	}
	return os.RemoveAll(f.dir)
}
