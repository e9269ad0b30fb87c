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
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
	"github.com/fabricd/fabricd/fabric"
)

// A daemon is one fabricd in all its incarnations.
type daemon struct {
	*process // the present incarnation's; nil before the first start
	name     string
	dir      string
	argv     []string
}

func newDaemon(dir, name string) *daemon { return &daemon{name: name, dir: filepath.Join(dir, name)} }

func (d *daemon) socket() string { return filepath.Join(d.dir, "app.sock") }
func (d *daemon) admin() string  { return filepath.Join(d.dir, "admin.sock") }
func (d *daemon) state() string  { return filepath.Join(d.dir, "state") }
func (d *daemon) token() string  { return filepath.Join(filepath.Dir(d.dir), "join.token") }

// command returns the daemon's command line; without an address to join it is the host.
func (d *daemon) command(exe, bind string, port int, join string, flags []string) []string {
	argv := []string{exe, "run", "--name", d.name, "--state-dir", d.state(), "--bind", bind, "--gossip-port", "0",
		"--data-port", strconv.Itoa(port), "--socket", d.socket(), "--admin", d.admin(), "--log-format", "json"}
	if join == "" {
		argv = append(argv, "--role", "host")
	} else {
		argv = append(argv, "--join", join, "--token-file", d.token())
	}
	return append(argv, flags...)
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

// startCluster makes a cluster of daemons, of which the first is the host, and starts them. They see
// each other when it returns.
func (c *children) startCluster(ctx context.Context, exe string, all []*daemon) error {
	host := all[0]
	out, err := childOf(exe, "init", "--name", host.name, "--state-dir", host.state(), "--token-file", host.token(), "--token-uses", "unlimited").CombinedOutput()
	if err != nil {
		return fmt.Errorf("fabricd init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for i, d := range all {
		if err := c.startDaemon(d); err != nil {
			return err
		}
		// One by one, so that the IDs are in the order of the daemons.
		if err := d.joined(ctx, i+1); err != nil {
			return err
		}
	}
	for _, d := range all {
		if err := d.joined(ctx, len(all)); err != nil {
			return err
		}
	}
	return nil
}

// startDaemon starts the daemon's next incarnation.
func (c *children) startDaemon(d *daemon) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	var err error
	d.process, err = c.spawn("fabricd-"+d.name, d.argv...)
	return err
}

const (
	startLimit = 20 * time.Second      // for a process to start, and a daemon to join the cluster and be seen
	pollEvery  = 10 * time.Millisecond // for conditions without an event
)

// joined waits until the daemon has joined the cluster and sees n nodes there, itself included.
func (d *daemon) joined(ctx context.Context, n int) error {
	node, err := d.attach(ctx)
	if err != nil {
		return err
	}
	return errors.Join(sees(ctx, node, n), node.Close())
}

// attach attaches to the daemon as soon as it has joined the cluster.
func (d *daemon) attach(ctx context.Context) (*fabric.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
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
	ctx, cancel := context.WithTimeout(ctx, startLimit)
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
			return fmt.Errorf("waited in vain: %w: %w", err, ctx.Err())
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

// A fleet is a cluster of daemons on the loopback interface.
type fleet struct {
	children
	daemons []*daemon
}

// newFleet makes a cluster and starts n daemons, which see each other when it
// returns.
func newFleet(ctx context.Context, exe string, n int, options ...string) (_ *fleet, err error) {
	f := &fleet{}
	if f.dir, err = os.MkdirTemp("", "fabric-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, f.tails(5)), f.close())
		}
	}()
	port, err := tools.FreePort()
	if err != nil {
		return nil, err
	}
	const loopback = "127.0.0.1"
	host := newDaemon(f.dir, "host")
	host.argv = host.command(exe, loopback, port, "", options)
	f.daemons = []*daemon{host}
	for i := 1; i < n; i++ {
		d := newDaemon(f.dir, fmt.Sprintf("node-%d", i))
		d.argv = d.command(exe, loopback, 0, net.JoinHostPort(loopback, strconv.Itoa(port)), options)
		f.daemons = append(f.daemons, d)
	}
	return f, f.startCluster(ctx, exe, f.daemons)
}
