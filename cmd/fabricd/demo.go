package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

const (
	demoLimit = 28 * time.Second // for everything; the demo promises 30 s
	stepLimit = 10 * time.Second // for the wait of one step
)

func (a *app) demoCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Three nodes, two applications and a failure on this machine, every step checked", Args: noArguments,
		Long: `demo starts three fabricd processes on loopback, attaches two applications to
two of them, lets them exchange messages and write and read each other's
memory, kills one fabricd and starts it again, restarts it in good order while a
server streams, and bans it while its application talks. It checks every step
itself, needs no privilege and leaves no process and no file behind.`,
		Example: `  fabricd demo
  fabricd demo --json | jq -c 'select(.ok == false)'`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per step")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		defer surviveBrokenPipe()()
		t := newTimeline(cmd.Context(), a.stdout, asJSON)
		err := runDemo(cmd.Context(), t, a)
		t.close()
		return err
	}
	return cmd
}

// runDemo runs the demo in a directory of its own and cleans up after it, even
// if it fails or is interrupted.
func runDemo(ctx context.Context, t *timeline, a *app) (err error) {
	// Children die with the thread that started them; this goroutine keeps it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fabricd-demo-")
	if err != nil {
		return err
	}
	p := &plot{t: t, dir: dir, crew: &crew{exe: exe, dir: dir, limit: stepLimit,
		env:      []string{"GOTRACEBACK=single", "FABRICD_PANIC=crash"},
		settings: []string{"--detection", "fast", "--log-format", "json", "--log-level", "info"}}}
	err = p.play(ctx)
	if err != nil && t.interrupted() {
		err = errors.New("interrupted")
	} else if err != nil && t.broken == nil {
		fmt.Fprint(a.stderr, p.crew.tails(15))
	}
	if cleanErr := p.clean(err == nil); err == nil {
		err = cleanErr
	}
	return err
}

// A plot is the demo's state. One goroutine plays it.
type plot struct {
	t    *timeline
	dir  string
	crew *crew

	host, one, two *member
	alice, bob     *actor
	// witness, at the host, and bystander, at node-1, have nothing to do with what breaks.
	witness, bystander *actor
}

// play plays the scenes in order, up to the first step that is wrong.
func (p *plot) play(ctx context.Context) error {
	for _, scene := range []struct {
		title string
		play  task
	}{
		{"A cluster: a host and two nodes that find each other", p.cluster},
		{"Two applications: messages", p.messages},
		{"Two applications: each other's memory", p.memory},
		{"A node is lost", p.loss},
		{"The node comes back", p.comeback},
		{"A fabricd restarts in good order while a server streams", p.cutStream},
		{"Taking back: the operator bans a node, and allows it again", p.takeBack},
		{"All nodes leave", p.leave},
	} {
		p.t.scene(scene.title)
		if err := scene.play(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A task is what the demo, or one of its applications, does next.
type task func(context.Context) error

// inOrder does tasks up to the first that fails.
func inOrder(ctx context.Context, tasks ...task) error {
	for _, do := range tasks {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clean ends every process, removes every file and checks that nothing is left.
func (p *plot) clean(played bool) error {
	killed := p.crew.stop()
	err := os.RemoveAll(p.dir)
	if !played {
		return err
	}
	if err == nil && killed > 0 {
		err = fmt.Errorf("%d processes had to be killed", killed)
	}
	if _, statErr := os.Stat(p.dir); err == nil && !errors.Is(statErr, fs.ErrNotExist) {
		err = fmt.Errorf("%s is still there", p.dir)
	}
	return p.t.step("nothing left behind", fmt.Sprintf("%d processes ended, no file", len(p.crew.all)), err)
}

// until calls check until it succeeds, at most for stepLimit.
func until(ctx context.Context, check func() error) error { return within(ctx, stepLimit, check) }

// cluster makes a cluster of three.
func (p *plot) cluster(ctx context.Context) (err error) {
	token := p.tokenFile()
	if p.host, err = p.crew.member("host", "--role", "host"); err != nil {
		return err
	}
	err = inOrder(ctx,
		p.step("fabricd init", func(context.Context) (string, error) { return "a cluster and a join token", p.host.initCluster(token) }),
		p.starts("fabricd run --role host", p.host, "node 0", func(st daemon.Status) bool { return st.ID == fabric.Host && st.Generation > 0 }))
	if err != nil {
		return err
	}
	for i, m := range []**member{&p.one, &p.two} {
		if *m, err = p.crew.member(fmt.Sprintf("node-%d", i+1), "--join", p.host.dataAddr, "--token-file", token); err != nil {
			return err
		}
		start := p.starts("fabricd run --join", *m, "a free ID and a generation", func(st daemon.Status) bool { return st.ID != fabric.Host && st.Generation > 0 })
		if err := start(ctx); err != nil {
			return err
		}
	}
	return inOrder(ctx, p.step("all three see all three", func(ctx context.Context) (string, error) {
		return "", agree(ctx, stepLimit, []*member{p.host, p.one, p.two})
	}))
}

// step is a task that is recorded, with the detail that do returns.
func (p *plot) step(name string, do func(context.Context) (detail string, err error)) task {
	return func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		detail, err := do(limited)
		return p.t.step(name, detail, err)
	}
}

// starts starts a member. right checks its ID and generation.
func (p *plot) starts(name string, m *member, want string, right func(daemon.Status) bool) task {
	return p.step(name, func(ctx context.Context) (string, error) {
		st, err := m.start(ctx)
		if err == nil && !right(st) {
			err = fmt.Errorf("%s is node %d.%d, want %s", m.name, st.ID, st.Generation, want)
		}
		return joined(st), err
	})
}

// startsAgain starts node-2 again: the same ID, the next generation.
func (p *plot) startsAgain(ctx context.Context) error {
	id, gen := p.two.id, p.two.gen+1
	return p.starts("node-2 runs again", p.two, fmt.Sprintf("%d.%d", id, gen), func(st daemon.Status) bool { return st.ID == id && st.Generation == gen })(ctx)
}

// terminates ends a member in order, within a time unless that is 0.
func (p *plot) terminates(name string, m *member, limit time.Duration) task {
	return p.step(name, func(ctx context.Context) (string, error) {
		took, err := m.proc.terminate(ctx)
		if err == nil && limit > 0 && took > limit {
			err = fmt.Errorf("it took %v, want %v at most", took, limit)
		}
		return fmt.Sprintf("left within %v", took.Round(time.Millisecond)), err
	})
}

func joined(st daemon.Status) string {
	return fmt.Sprintf("%s is node %d generation %d, data %s", st.Name, st.ID, st.Generation, strings.Join(st.Data, " "))
}

// A since is the moment from which the times of steps count; the zero since is none.
type since struct {
	began time.Time
	what  string        // has happened then
	limit time.Duration // in which a step must have happened; 0: none
}

// record records what happened at a time.
func (p *plot) record(s since, name string, at time.Time, detail string, err error) error {
	took := at.Sub(s.began)
	if err == nil && s.limit > 0 && took > s.limit {
		err = fmt.Errorf("after %v, want %v at most", took.Round(time.Millisecond), s.limit)
	}
	if s.what != "" && !at.IsZero() {
		detail = fmt.Sprintf("%.1f ms after %s: %s", ms(took), s.what, detail)
	}
	return p.t.step(name, detail, err)
}

// await returns a task that waits for the named line of an application, and records it.
func (p *plot) await(a **actor, what, name string) task { return p.awaitSince(since{}, a, what, name) }

func (p *plot) awaitSince(s since, a **actor, what, name string) task {
	return func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		l, err := (*a).next(limited, what)
		return p.record(s, name, l.At, l.Detail, err)
	}
}

// sends sends an application a command.
func (p *plot) sends(a **actor, command string) task {
	return func(context.Context) error { return (*a).send(command) }
}

// acts starts an application in a role at m, and waits for its line.
func (p *plot) acts(a **actor, role string, m *member, what, name string) task {
	return func(ctx context.Context) (err error) {
		if *a, err = p.crew.act(role, m.socket()); err != nil {
			return err
		}
		return p.await(a, what, name)(ctx)
	}
}

// dismisses ends applications.
func (p *plot) dismisses(name string, all ...**actor) task {
	return p.step(name, func(ctx context.Context) (string, error) {
		var errs []error
		for _, a := range all {
			errs = append(errs, (*a).dismiss(ctx))
		}
		return "", errors.Join(errs...)
	})
}

// sees waits for an event of node-2 at node-1, where alice prints it, and at the host, where the
// witness does, and has each recorded. An empty reason is any.
func (p *plot) sees(s since, kind fabric.EventKind, incarnation func() string, reason string) task {
	word, name := "node-added", "NODE_ADDED"
	if kind == fabric.NodeRemoved {
		word, name = "node-removed", "NODE_REMOVED"
	}
	return func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		for _, at := range []struct {
			node string
			a    *actor
		}{{"node-1", p.alice}, {"host", p.witness}} {
			printed, err := at.a.next(limited, word)
			if want := "node " + incarnation() + " "; err == nil && (!strings.HasPrefix(printed.Detail, want) || !strings.HasSuffix(printed.Detail, reason)) {
				err = fmt.Errorf("%s says %q, want %q %s", name, printed.Detail, want, reason)
			}
			if err := p.record(s, name+" at "+at.node, printed.At, printed.Detail, err); err != nil {
				return err
			}
		}
		return nil
	}
}

// messages starts the two applications and lets them talk.
func (p *plot) messages(ctx context.Context) error {
	return inOrder(ctx,
		p.acts(&p.witness, "witness", p.host, "listening", "a witness listens at host"),
		p.acts(&p.bob, "bob", p.two, "attached", "bob attaches to node-2"),
		p.acts(&p.alice, "alice", p.one, "attached", "alice attaches to node-1"),
		p.connect,
		p.await(&p.alice, "messages", "their first messages, over the link"),
		p.await(&p.alice, "messages", "they exchange messages"),
		p.step("the connection has a path of its own", func(ctx context.Context) (string, error) { return pathOf(ctx, p.one) }),
		p.sends(&p.alice, "talk"),
		p.await(&p.alice, "messages", "the same messages, on the path"),
	)
}

// pathOf waits until the connection of m's application goes through a path, and describes it.
func pathOf(ctx context.Context, m *member) (text string, err error) {
	err = until(ctx, func() error {
		paths, err := pathsOf(ctx, m.admin, "")
		switch {
		case err != nil:
			return err
		case len(paths) != 1 || paths[0].Messages.Path != "path" || paths[0].Socket == nil || !paths[0].Socket.TLS:
			return fmt.Errorf("no path with TLS among %+v", paths)
		}
		text = pathText(paths[0].Socket)
		return nil
	})
	return text, err
}

// connect lets bob listen, alice connect and bob accept.
func (p *plot) connect(ctx context.Context) error {
	return inOrder(ctx,
		p.await(&p.bob, "listening", "bob listens"),
		p.sends(&p.alice, p.toBob()),
		p.await(&p.alice, "connected", "alice connects"),
		p.await(&p.bob, "accepted", "bob accepts"),
	)
}

// toBob is the command to connect to an application at node-2.
func (p *plot) toBob() string { return fmt.Sprintf("connect %d:%d", p.two.id, demoPort) }

// greet has alice connect, exchange one message, and close.
func (p *plot) greet(ctx context.Context) error {
	return inOrder(ctx,
		p.connect,
		p.await(&p.alice, "messages", "a message on the new connection"),
		p.await(&p.bob, "closed", "bob sees alice close"),
	)
}

// memory follows the applications through windows, RMA and fences.
func (p *plot) memory(ctx context.Context) error {
	return inOrder(ctx,
		p.await(&p.alice, "window", "alice registers a window"),
		p.await(&p.bob, "window", "bob registers a window"),
		p.await(&p.alice, "wrote", "alice writes into bob's memory"),
		p.await(&p.bob, "saw-signal", "bob polls, sees her signal"),
		p.await(&p.bob, "read", "bob reads alice's memory"),
		p.await(&p.bob, "wrote", "bob writes into alice's memory"),
		p.await(&p.alice, "saw-signal", "alice polls, sees his signal"),
		p.await(&p.alice, "read", "alice reads bob's memory"),
	)
}

// loss kills the node that bob is on, while alice is blocked in a receive.
func (p *plot) loss(ctx context.Context) error {
	if err := p.await(&p.alice, "blocked", "alice blocks in a receive")(ctx); err != nil {
		return err
	}
	kill := since{began: time.Now(), what: "the kill"}
	p.two.proc.kill()
	p.t.step("kill -9 node-2", fmt.Sprintf("node %s, pid %d", p.two.incarnation(), p.two.proc.pid()), nil)
	return inOrder(ctx,
		p.awaitSince(kill, &p.alice, "reset", "alice's receive: ECONNRESET"),
		p.sees(kill, fabric.NodeRemoved, p.two.incarnation, ""),
		p.await(&p.alice, "no-device", "alice connects to the lost node"),
		p.await(&p.bob, "node-gone", "bob learns that his node is gone"),
		p.dismisses("bob ends", &p.bob),
	)
}

// comeback starts the killed node again.
func (p *plot) comeback(ctx context.Context) error {
	return inOrder(ctx,
		p.startsAgain,
		p.sees(since{}, fabric.NodeAdded, p.two.incarnation, ""),
		p.acts(&p.bob, "bob-again", p.two, "attached", "bob attaches again"),
		p.greet,
	)
}

// leave ends everything in order: a node that leaves notifies the others.
func (p *plot) leave(ctx context.Context) error {
	return inOrder(ctx,
		p.dismisses("bob ends", &p.bob),
		p.terminates("SIGTERM to node-2", p.two, 2*time.Second),
		p.sees(since{}, fabric.NodeRemoved, p.two.incarnation, "left"),
		p.dismisses("alice ends", &p.alice),
		p.dismisses("the others end", &p.bystander, &p.witness),
		p.step("no event too many", func(context.Context) (string, error) {
			return "", errors.Join(p.alice.silent(), p.witness.silent())
		}),
		p.terminates("SIGTERM to node-1", p.one, 0),
		p.terminates("SIGTERM to host", p.host, 0),
	)
}
