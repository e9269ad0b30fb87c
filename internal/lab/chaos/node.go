package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// Limits of the lab's waits.
const (
	joinLimit     = 30 * time.Second // a daemon that starts, until it serves
	agreeLimit    = 30 * time.Second // all know all
	readyLimit    = 30 * time.Second // all applications have connected
	endLimit      = 10 * time.Second // a process that was asked to end
	adminLimit    = 5 * time.Second  // one request to a daemon
	instructLimit = 5 * time.Second  // an application that got an instruction
)

// A node is one of the scenario's: a directory, a daemon and an application, one start
// after the other.
type node struct {
	c     *cluster
	index int
	dir   string // on this machine
	admin *daemon.Client

	daemon, app role

	// act is held while something is done to the node's processes, instructing while
	// its application's control file is written.
	act, instructing sync.Mutex

	mu       sync.Mutex // guards the fields below
	others   []child    // a usurper, busy loops
	state    string     // name of the state directory
	id       int        // the node ID, as the daemon has reported it
	groups   []string   // control groups that its processes are to be in
	control  workload.Control
	follower *follower // of the newest daemon
}

// A role is one kind of process of a node: its daemon, or its application, one start after the other.
type role struct {
	name   string
	source func(run int) history.Source
	due    atomic.Int32 // starts that actions have yet to make: a process that they have ended is started again

	mu  sync.Mutex // guards the fields below
	run int        // of the newest process; counts from 1
	p   child      // the newest process; nil: none was started
}

// current returns the newest process, nil if none was started, and its source.
func (r *role) current() (child, history.Source) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.p, r.source(r.run)
}

// running returns the process if it runs, else errNotRunning.
func (r *role) running() (child, history.Source, error) {
	p, source := r.current()
	if p == nil || !p.running() {
		return nil, source, errNotRunning
	}
	return p, source, nil
}

// next returns the source of one more start.
func (r *role) next() history.Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run++
	return r.source(r.run)
}

// start starts one more process of a role: fabricd with the arguments for its source. The node's act
// is held.
func (s *node) start(ctx context.Context, r *role, args func(history.Source) ([]string, error)) (p child, source history.Source, err error) {
	if _, source, err := r.running(); err == nil {
		return nil, source, fmt.Errorf("the %s of node %d runs already", r.name, s.index)
	}
	source = r.next()
	argv, err := args(source)
	if err == nil {
		p, err = s.c.site.start(ctx, s, fmt.Sprintf("%s-%d", source.Role, source.Run), argv...)
	}
	if err != nil {
		return nil, source, fmt.Errorf("start the %s of node %d: %w", r.name, s.index, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p = p
	return p, source, nil
}

func newNode(c *cluster, id int) (*node, error) {
	s := &node{c: c, index: id, dir: filepath.Join(c.dir, fmt.Sprintf("n%d", id)), state: "state", id: id}
	s.daemon.name, s.daemon.source = "daemon", func(run int) history.Source { return history.Daemon(id, run) }
	s.app.name, s.app.source = "application", func(run int) history.Source { return history.App(id, run) }
	s.admin = daemon.NewClient(s.file("admin.sock"))
	// Containers run as another user.
	return s, errors.Join(os.Mkdir(s.dir, 0o700), os.Chmod(s.dir, c.dirMode))
}

// file returns a file of the node on this machine.
func (s *node) file(name string) string { return filepath.Join(s.dir, name) }

// name is the name of the node.
func (s *node) name() string { return s.c.schedule.Scenario.Cluster.Names.Of(s.index) }

// runArgs are the arguments of every daemon of the node: its name, its state, and
// the prefix of the names of its sockets.
func (s *node) runArgs(name, state, sockets string) []string {
	p := s.c.site.place(s.index)
	path := func(name string) string { return s.c.site.path(s, name) }
	return []string{"run", "--name", name, "--state-dir", path(state),
		"--bind", p.bind.String(), "--data-port", strconv.Itoa(int(p.data)), "--gossip-port", strconv.Itoa(int(p.gossip)),
		"--detection", string(s.c.schedule.Scenario.Cluster.Detection), "--socket", path(sockets + "app.sock"), "--admin", path(sockets + "admin.sock"),
		"--log-format", "json", "--log-level", "info"}
}

// hostAddr is where the host takes joins.
func (c *cluster) hostAddr() string {
	host := c.site.place(0)
	return fmt.Sprintf("%s:%d", host.advertise, host.data)
}

// daemonArgs are the arguments of the node's own daemon.
func (s *node) daemonArgs() []string {
	args := s.runArgs(s.name(), s.state, "")
	if a := s.c.site.place(s.index).advertise; a.IsValid() {
		args = append(args, "--advertise", a.String())
	}
	if s.c.providers != "" {
		args = append(args, "--providers", s.c.providers)
	}
	if s.c.faults { // then no connection gets a path
		args = append(args, "--enable-faults")
	} else {
		args = append(args, "--paths", history.PathsLazy)
	}
	of := s.c.schedule.Scenario.Cluster
	if of.ConnMemory != 0 {
		args = append(args, "--conn-memory", fmt.Sprint(int64(of.ConnMemory)))
	}
	if s.index == 0 {
		if of.Certificates != 0 {
			args = append(args, "--certificate-validity", of.Certificates.String())
		}
		if of.LostPair != "" {
			args = append(args, "--lost-pair", string(of.LostPair))
		}
		return append(args, "--role", "host")
	}
	return append(args, "--join", s.c.hostAddr(), "--token-file", s.c.site.path(s, "join.token"))
}

// startDaemon starts the node's daemon and does not wait until it serves. act
// is held.
func (s *node) startDaemon(ctx context.Context) error {
	d, source, err := s.start(ctx, &s.daemon, func(history.Source) ([]string, error) { return s.daemonArgs(), nil })
	if err != nil {
		return err
	}
	s.c.follow(&follower{node: s, child: d, source: source, serving: make(chan struct{})})
	return s.enterGroups(d)
}

// startApp starts the node's application. act is held.
func (s *node) startApp(ctx context.Context) error {
	a, source, err := s.start(ctx, &s.app, func(source history.Source) ([]string, error) {
		name := fmt.Sprintf("app-%d.json", source.Run)
		text, err := json.Marshal(s.c.appConfig(s, source.Run))
		if err == nil {
			err = os.WriteFile(s.file(name), text, 0o644)
		}
		return []string{"chaos", "app", "--config", s.c.site.path(s, name)}, err
	})
	if err != nil {
		return err
	}
	s.c.log.Put(&history.Process{Target: source, Did: history.DidStart})
	s.c.watchEnd(a, source)
	return s.enterGroups(a)
}

// awaitBack waits, for a while, until no start is due: an action may find that
// the one before it is late. act is held, and given up meanwhile.
func (s *node) awaitBack(ctx context.Context, r *role) {
	for deadline := time.Now().Add(endLimit); r.due.Load() > 0 && time.Now().Before(deadline); {
		s.act.Unlock()
		pause(ctx, pollEvery)
		s.act.Lock()
	}
}

// children returns the processes that run, the daemon first.
func (s *node) children() []child {
	d, _ := s.daemon.current()
	a, _ := s.app.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]child{d, a}, s.others...)
	return slices.DeleteFunc(all, func(p child) bool { return p == nil || !p.running() })
}

// add adds a process to those that end with the node.
func (s *node) add(p child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others = append(s.others, p)
}

// following returns the follower of the newest daemon.
func (s *node) following() *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.follower
}

// enterGroup moves the node's processes to a control group, now and whenever
// one is started, until leaveGroup.
func (s *node) enterGroup(dir string) error {
	s.mu.Lock()
	s.groups = append(s.groups, dir)
	s.mu.Unlock()
	return everywhere(s.children(), func(p child) error { return addToGroup(dir, p.pid()) })
}

func (s *node) leaveGroup(dir string) error {
	s.mu.Lock()
	s.groups = slices.DeleteFunc(s.groups, func(g string) bool { return g == dir })
	s.mu.Unlock()
	return emptyGroup(dir)
}

func (s *node) enterGroups(c child) error {
	s.mu.Lock()
	groups := slices.Clone(s.groups)
	s.mu.Unlock()
	return everywhere(groups, func(dir string) error { return addToGroup(dir, c.pid()) })
}

// instruct changes the application's instructions and waits until it has followed them. One that
// does not run, or stands still, follows them later.
func (s *node) instruct(ctx context.Context, change func(*workload.Control)) error {
	s.instructing.Lock()
	s.mu.Lock()
	change(&s.control)
	s.control.Seq++
	control := s.control
	s.mu.Unlock()
	err := workload.WriteControl(s.file("control.json"), control)
	s.instructing.Unlock()
	if err != nil {
		return err
	}
	app, _, err := s.app.running()
	if err != nil || app.frozen() {
		return nil
	}
	return await(ctx, instructLimit, func() error {
		if last := workload.Acknowledged(s.file("control.json")); last < control.Seq && app.running() {
			return fmt.Errorf("the application of node %d has not acknowledged its instructions", s.index)
		}
		return nil
	})
}

// nodeID returns the node ID.
func (s *node) nodeID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// status asks the node's daemon.
func (s *node) status(ctx context.Context) (daemon.Status, error) {
	return ask(ctx, s.admin.Status)
}

// ask asks a daemon something.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	return question(ctx)
}
