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
	joinLimit  = 30 * time.Second // a daemon that starts, until it serves
	agreeLimit = 30 * time.Second // all know all
	readyLimit = 30 * time.Second // all applications have connected
	endLimit   = 10 * time.Second // a process that was asked to end
	adminLimit = 5 * time.Second  // one request to a daemon
	obeyLimit  = 5 * time.Second  // an application that got an instruction
)

// A slot is a place for one node: a directory, a daemon and an application, one
// after the other.
type slot struct {
	c     *cluster
	id    int
	dir   string // on this machine
	admin *daemon.Client

	// daemonsDue and appsDue count the starts that actions owe: a process that they
	// have ended is started again.
	daemonsDue, appsDue atomic.Int32

	// act is held while something is done to the slot's processes, telling while
	// its application's control file is written.
	act, telling sync.Mutex

	mu        sync.Mutex // guards the fields below
	daemon    child      // nil: none was started
	app       child
	usurper   child
	hogs      []child // busy loops
	daemonRun int
	appRun    int
	state     string   // name of the state directory
	node      int      // the node ID, as the daemon has reported it
	groups    []string // control groups that its processes are to be in
	control   workload.Control
	follower  *follower // of the newest daemon
}

func newSlot(c *cluster, id int) (*slot, error) {
	s := &slot{c: c, id: id, dir: filepath.Join(c.dir, fmt.Sprintf("n%d", id)), state: "state", node: id}
	s.admin = daemon.NewClient(s.file("admin.sock"))
	// Containers run as another user.
	return s, errors.Join(os.Mkdir(s.dir, 0o700), os.Chmod(s.dir, c.dirMode))
}

// file returns a file of the slot on this machine.
func (s *slot) file(name string) string { return filepath.Join(s.dir, name) }

// name is the name of the slot's node.
func (s *slot) name() string { return s.c.schedule.Scenario.Cluster.Names.Of(s.id) }

// runArgs are the arguments of every daemon in the slot: its node's name, its state, and
// the prefix of the names of its sockets.
func (s *slot) runArgs(name, state, sockets string) []string {
	p := s.c.site.place(s.id)
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

// daemonArgs are the arguments of the slot's own daemon.
func (s *slot) daemonArgs() []string {
	args := s.runArgs(s.name(), s.state, "")
	if a := s.c.site.place(s.id).advertise; a.IsValid() {
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
	if s.id == 0 {
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

// startDaemon starts the slot's daemon and does not wait until it serves. act
// is held.
func (s *slot) startDaemon(ctx context.Context) error {
	s.mu.Lock()
	old := s.daemon
	s.mu.Unlock()
	if old != nil && old.running() {
		return fmt.Errorf("the daemon of slot %d runs already", s.id)
	}
	s.mu.Lock()
	s.daemonRun++
	run := s.daemonRun
	s.mu.Unlock()
	d, err := s.c.site.start(ctx, s, fmt.Sprintf("daemon-%d", run), s.daemonArgs()...)
	if err != nil {
		return fmt.Errorf("start the daemon of slot %d: %w", s.id, err)
	}
	s.mu.Lock()
	s.daemon = d
	s.mu.Unlock()
	f := &follower{slot: s, child: d, source: history.Daemon(s.id, run), serving: make(chan struct{})}
	s.c.follow(f)
	return s.enterGroups(d)
}

// startApp starts the slot's application. act is held.
func (s *slot) startApp(ctx context.Context) error {
	s.mu.Lock()
	old := s.app
	s.mu.Unlock()
	if old != nil && old.running() {
		return fmt.Errorf("the application of slot %d runs already", s.id)
	}
	s.mu.Lock()
	s.appRun++
	run := s.appRun
	s.mu.Unlock()
	name := fmt.Sprintf("app-%d", run)
	text, err := json.Marshal(s.c.appConfig(s, run))
	if err == nil {
		err = os.WriteFile(s.file(name+".json"), text, 0o644)
	}
	if err != nil {
		return err
	}
	a, err := s.c.site.start(ctx, s, name, "chaos", "app", "--config", s.c.site.path(s, name+".json"))
	if err != nil {
		return fmt.Errorf("start the application of slot %d: %w", s.id, err)
	}
	s.mu.Lock()
	s.app = a
	s.mu.Unlock()
	source := history.App(s.id, run)
	s.c.log.Put(&history.Process{Target: source, Did: history.DidStart})
	s.c.watchEnd(a, source)
	return s.enterGroups(a)
}

// awaitBack waits, for a while, until no start is due: an action may find that
// the one before it is late. act is held, and given up meanwhile.
func (s *slot) awaitBack(ctx context.Context, due *atomic.Int32) {
	for deadline := time.Now().Add(endLimit); due.Load() > 0 && time.Now().Before(deadline); {
		s.act.Unlock()
		pause(ctx, pollEvery)
		s.act.Lock()
	}
}

// children returns the processes that run, the daemon first.
func (s *slot) children() []child {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []child
	for _, c := range append([]child{s.daemon, s.app, s.usurper}, s.hogs...) {
		if c != nil && c.running() {
			all = append(all, c)
		}
	}
	return all
}

// current returns the slot's daemon and application and which of their starts
// they are.
func (s *slot) current() (d child, dSource history.Source, a child, aSource history.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.daemon, history.Daemon(s.id, s.daemonRun), s.app, history.App(s.id, s.appRun)
}

// enterGroup moves the slot's processes to a control group, now and whenever
// one is started, until leaveGroup.
func (s *slot) enterGroup(dir string) error {
	s.mu.Lock()
	s.groups = append(s.groups, dir)
	s.mu.Unlock()
	var errs []error
	for _, c := range s.children() {
		errs = append(errs, addToGroup(dir, c.pid()))
	}
	return errors.Join(errs...)
}

func (s *slot) leaveGroup(dir string) error {
	s.mu.Lock()
	s.groups = slices.DeleteFunc(s.groups, func(g string) bool { return g == dir })
	s.mu.Unlock()
	return emptyGroup(dir)
}

func (s *slot) enterGroups(c child) error {
	s.mu.Lock()
	groups := slices.Clone(s.groups)
	s.mu.Unlock()
	var errs []error
	for _, dir := range groups {
		errs = append(errs, addToGroup(dir, c.pid()))
	}
	return errors.Join(errs...)
}

// tell changes the application's instructions and waits until it has obeyed. One that
// does not run, or stands still, obeys later.
func (s *slot) tell(ctx context.Context, change func(*workload.Control)) error {
	s.telling.Lock()
	s.mu.Lock()
	change(&s.control)
	s.control.Seq++
	control, app := s.control, s.app
	s.mu.Unlock()
	err := workload.Tell(s.file("control.json"), control)
	s.telling.Unlock()
	if err != nil {
		return err
	}
	if app == nil || !app.running() || app.frozen() {
		return nil
	}
	return await(ctx, obeyLimit, func() error {
		if heard := workload.Heard(s.file("control.json")); heard < control.Seq && app.running() {
			return fmt.Errorf("the application of slot %d has not heard what it was told", s.id)
		}
		return nil
	})
}

// nodeID returns the slot's node ID.
func (s *slot) nodeID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// status asks the slot's daemon.
func (s *slot) status(ctx context.Context) (daemon.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	return s.admin.Status(ctx)
}
