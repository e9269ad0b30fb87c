package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A cluster is a run in a real lab: the nodes of a scenario at a site. One
// goroutine, that of runReal, leads it through its phases; actions of the timeline
// run beside it and are waited for.
type cluster struct {
	lab       scenario.Lab
	dir       string
	dirMode   fs.FileMode
	site      site
	spawn     *spawner // of processes of this machine
	schedule  *scenario.Schedule
	providers string        // of the daemons; empty: as they like
	beat      time.Duration // of workloads
	faults    bool          // the daemons run with --enable-faults
	clock     *workload.Clock
	zero      int64 // CLOCK_MONOTONIC at the zero of the run
	log       *workload.Log
	say       func(format string, args ...any)
	nodes     []*node

	followers followers
	planes    planes

	mu      sync.Mutex    // guards the fields below
	errs    []error       // of the harness
	ids     map[int]int   // IDs of the nodes that have served, by index
	lastEnd time.Duration // when something last happened after which things have to settle
}

// fail records that the harness has failed. The run goes on to its end, and is
// not judged.
func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// failure returns why the harness has failed, nil if it has not.
func (c *cluster) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

// up makes the cluster: the host, and every node that is not late, one after the
// other, so that the IDs are the indexes.
func (c *cluster) up(ctx context.Context) error {
	late := c.schedule.Scenario.Late()
	for id := range c.schedule.Scenario.Cluster.Nodes {
		s, err := newNode(c, id)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, s)
	}
	if err := c.initHost(ctx); err != nil {
		return err
	}
	for _, s := range c.nodes {
		if slices.Contains(late, s.index) {
			continue
		}
		if err := c.startDaemon(ctx, s); err != nil {
			return err
		}
	}
	return c.agree(ctx)
}

// initHost makes the state of node 0 and gives all others the join token.
func (c *cluster) initHost(ctx context.Context) error {
	host := c.nodes[0]
	args := []string{"init", "--name", host.name(), "--state-dir", c.site.path(host, host.state), "--token-file", c.site.path(host, "join.token"),
		"--token-ttl", "never", "--token-uses", "unlimited"} // clocks jump, and directories are lost again and again
	if err := c.runToEnd(ctx, host, args...); err != nil {
		return fmt.Errorf("make a cluster: %w", err)
	}
	token, err := os.ReadFile(host.file("join.token"))
	if err != nil {
		return err
	}
	for _, s := range c.nodes[1:] {
		if err := os.WriteFile(s.file("join.token"), token, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// runToEnd runs a command of fabricd that ends by itself and has to succeed.
func (c *cluster) runToEnd(ctx context.Context, s *node, args ...string) error {
	p, err := c.site.start(ctx, s, args[0], args...)
	if err != nil {
		return err
	}
	select {
	case <-p.ended():
	case <-ctx.Done():
		err := p.kill(context.WithoutCancel(ctx))
		<-p.ended()
		return errors.Join(context.Cause(ctx), err)
	}
	if p.code() != 0 {
		return fmt.Errorf("fabricd %s: exit code %d: %s", strings.Join(args, " "), p.code(), tailOf(p.log(), 3))
	}
	return nil
}

// startDaemon starts a node's daemon and waits until it serves.
func (c *cluster) startDaemon(ctx context.Context, s *node) error {
	s.act.Lock()
	defer s.act.Unlock()
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	return c.awaitServing(ctx, s)
}

// awaitServing waits until the newest daemon of a node serves.
func (c *cluster) awaitServing(ctx context.Context, s *node) error {
	f := s.following()
	timer := time.NewTimer(joinLimit)
	defer timer.Stop()
	select {
	case <-f.serving:
		return nil
	case <-f.child.ended():
		return fmt.Errorf("the daemon of node %d ended with code %d: %s", s.index, f.child.code(), tailOf(f.child.log(), 5))
	case <-timer.C:
		return fmt.Errorf("the daemon of node %d has not joined within %v: %s", s.index, joinLimit, tailOf(f.child.log(), 5))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// running returns the nodes whose daemon runs.
func (c *cluster) running() []*node {
	var all []*node
	for _, s := range c.nodes {
		if _, _, err := s.daemon.running(); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// agree waits until every daemon that runs holds exactly those for alive.
func (c *cluster) agree(ctx context.Context) error {
	nodes := c.running()
	var ids []string
	for _, s := range nodes {
		ids = append(ids, fmt.Sprint(s.nodeID()))
	}
	slices.Sort(ids)
	want := strings.Join(ids, " ")
	for _, s := range nodes {
		err := await(ctx, agreeLimit, func() error {
			all, err := ask(ctx, s.admin.Nodes)
			if err != nil {
				return err
			}
			var live []string
			for _, n := range all.Nodes {
				if n.State == "alive" {
					live = append(live, fmt.Sprint(n.ID))
				}
			}
			slices.Sort(live)
			if got := strings.Join(live, " "); got != want {
				return fmt.Errorf("node %d sees nodes %s, want %s", s.index, got, want)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("the cluster does not form: %w", err)
		}
	}
	return nil
}

// play starts the applications of the nodes that run and waits until they have
// connected.
func (c *cluster) play(ctx context.Context) error {
	err := everywhere(c.running(), func(s *node) error {
		s.act.Lock()
		defer s.act.Unlock()
		return s.startApp(ctx)
	})
	if err != nil {
		return err
	}
	for _, s := range c.running() {
		err := await(ctx, readyLimit, func() error {
			app, _ := s.app.current()
			if !app.running() {
				return fmt.Errorf("%w: it ended with code %d: %s", errGiveUp, app.code(), tailOf(app.log(), 5))
			}
			_, err := os.Stat(s.file("ready"))
			return err
		})
		if err != nil {
			return fmt.Errorf("the application of node %d does not connect: %w", s.index, err)
		}
	}
	return nil
}

// appConfig returns the configuration of a node's application.
func (c *cluster) appConfig(s *node, run int) workload.Config {
	sc := c.schedule.Scenario
	w := &sc.Workload
	cfg := workload.Config{
		Zero: c.zero, Seed: c.schedule.Seed, Node: s.index, Run: run,
		Socket:  c.site.path(s, "app.sock"),
		Admin:   c.site.path(s, "admin.sock"),
		History: c.site.path(s, fmt.Sprintf("app-%d.jsonl", run)),
		Control: c.site.path(s, "control.json"),
		Ready:   c.site.path(s, "ready"),
		Plan:    load.PlanOf(w),
	}
	cfg.Plan.Beat = c.beat
	late := sc.Late()
	for _, pair := range w.Pairs.Of(sc.Cluster.Nodes) {
		for i, me := range pair {
			if me == s.index {
				cfg.Peers = append(cfg.Peers, workload.Peer{Node: pair[1-i], Client: i == 0,
					Late: slices.Contains(late, pair[1-i])})
			}
		}
	}
	return cfg
}

// historyFile is where the lab writes the log of a source.
func (c *cluster) historyFile(s history.Source) string {
	return filepath.Join(c.dir, strings.ReplaceAll(s.String(), ":", "-")+".jsonl")
}

// quiet ends the applications in order, then waits until the daemons hold
// nothing of them any more.
func (c *cluster) quiet(ctx context.Context) {
	c.followers.stopListening()
	// First all begin nothing more, so that no application closes a connection in use.
	err := everywhere(c.nodes, func(s *node) error {
		return s.instruct(ctx, func(w *workload.Control) { w.Rest = true })
	})
	if err != nil {
		c.fail(err)
	}
	// The first record of this phase marks the beginning of the shutdown.
	c.log.Put(&history.Resources{Target: history.Lab, Phase: history.PhaseEnd, Count: map[string]int64{}})
	err = everywhere(c.nodes, func(s *node) error {
		s.act.Lock()
		defer s.act.Unlock()
		app, source, err := s.app.running()
		if err != nil {
			return nil
		}
		c.log.Put(&history.Process{Target: source, Did: history.DidTerminate})
		if err := app.terminate(ctx, endLimit); err != nil {
			return fmt.Errorf("application of node %d: %w", s.index, err)
		}
		if app.code() != 0 {
			return fmt.Errorf("application of node %d: exit code %d: %s", s.index, app.code(), tailOf(app.log(), 5))
		}
		return nil
	})
	if err != nil {
		c.fail(err)
	}
	c.count(ctx)
}

// down ends every process; one that does not end on request is killed.
func (c *cluster) down(ctx context.Context) {
	c.followers.ending.Store(true)
	c.followers.stopListening()
	err := everywhere(c.nodes, func(s *node) error {
		defer s.admin.Close()
		var errs []error
		for _, p := range s.children() {
			_ = p.cont(ctx) // it may stand still
		}
		for _, p := range s.children() {
			if err := p.terminate(ctx, endLimit); err != nil {
				errs = append(errs, fmt.Errorf("node %d: %w", s.index, err))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		c.fail(err)
	}
	c.followers.wg.Wait()
}

// kill ends every process at once.
func (c *cluster) kill() {
	c.followers.ending.Store(true)
	c.followers.cancel()
	for _, s := range c.nodes {
		for _, p := range s.children() {
			_ = p.kill(context.Background()) // it has ended, or its site is closed next
			<-p.ended()
		}
		s.admin.Close()
	}
	c.followers.listeners.Wait()
	c.followers.wg.Wait()
}
