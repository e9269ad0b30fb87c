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
	} else if err != nil {
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
	watch          *watcher
}

// play plays the scenes in order, up to the first step that is wrong.
func (p *plot) play(ctx context.Context) error {
	for _, scene := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"A cluster: a host and two nodes that find each other", p.cluster},
		{"Two applications: messages", p.messages},
		{"Two applications: each other's memory", p.memory},
		{"A node is lost", p.loss},
		{"The node comes back", p.comeback},
		{"A fabricd restarts in good order while a server streams", p.cutStream},
		{"Taking back: the operator bans a node, and allows it again", p.takeBack},
		{"Everybody leaves", p.leave},
	} {
		p.t.scene(scene.title)
		if err := scene.play(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clean ends every process, removes every file and checks that nothing is left.
func (p *plot) clean(played bool) error {
	if p.watch != nil {
		p.watch.close()
	}
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
func (p *plot) cluster(ctx context.Context) error {
	token := p.tokenFile()
	var err error
	if p.host, err = p.crew.member("host", "--role", "host"); err != nil {
		return err
	}
	err = p.host.initCluster(token)
	if err := p.t.step("fabricd init", "a cluster and a join token", err); err != nil {
		return err
	}
	st, err := p.host.start(ctx)
	if err == nil && (st.ID != fabric.Host || st.Generation == 0) {
		err = fmt.Errorf("the host is node %d.%d, want node 0", st.ID, st.Generation)
	}
	if err := p.t.step("fabricd run --role host", joined(st), err); err != nil {
		return err
	}
	for i, m := range []**member{&p.one, &p.two} {
		name := fmt.Sprintf("node-%d", i+1)
		if *m, err = p.crew.member(name, "--join", st.Data[0], "--token-file", token); err != nil {
			return err
		}
		got, err := (*m).start(ctx)
		if err == nil && (got.ID == fabric.Host || got.Generation == 0) {
			err = fmt.Errorf("%s is node %d.%d, want a free ID and a generation", name, got.ID, got.Generation)
		}
		if err := p.t.step("fabricd run --join", joined(got), err); err != nil {
			return err
		}
	}
	return p.t.step("all three see all three", "", agree(ctx, stepLimit, []*member{p.host, p.one, p.two}))
}

func joined(st daemon.Status) string {
	return fmt.Sprintf("%s is node %d generation %d, data %s", st.Name, st.ID, st.Generation, strings.Join(st.Data, " "))
}

// messages starts the two applications and lets them talk.
func (p *plot) messages(ctx context.Context) (err error) {
	if p.watch, err = newWatcher(ctx, p.host.socket()); err != nil {
		return p.t.step("an application attaches to host", "", err)
	}
	if p.bob, err = p.crew.act("bob", p.two.socket()); err != nil {
		return err
	}
	if p.alice, err = p.crew.act("alice", p.one.socket()); err != nil {
		return err
	}
	if err := p.hear(ctx, p.bob, "attached", "bob attaches to node-2"); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "attached", "alice attaches to node-1"); err != nil {
		return err
	}
	if err := p.connect(ctx, p.alice, p.bob); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "messages", "their first messages, over the link"); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "messages", "they exchange messages"); err != nil {
		return err
	}
	if err := p.hasPath(ctx, p.one, "the connection has a path of its own"); err != nil {
		return err
	}
	if err := p.alice.tell("talk"); err != nil {
		return err
	}
	return p.hear(ctx, p.alice, "messages", "the same messages, on the path")
}

// hasPath waits until the connection of m's application goes through a path.
func (p *plot) hasPath(ctx context.Context, m *member, name string) error {
	var ways []wayOf
	err := until(ctx, func() (err error) {
		if ways, err = waysOf(ctx, m.admin, ""); err != nil {
			return err
		}
		if len(ways) != 1 || ways[0].Messages.Path != "path" || ways[0].Socket == nil || !ways[0].Socket.TLS {
			return fmt.Errorf("no path with TLS among %+v", ways)
		}
		return nil
	})
	if err != nil {
		return p.t.step(name, "", err)
	}
	return p.t.step(name, pathText(ways[0].Socket), nil)
}

// connect lets b listen, a connect and b accept.
func (p *plot) connect(ctx context.Context, a, b *actor) error {
	if err := p.hear(ctx, b, "listening", "bob listens"); err != nil {
		return err
	}
	if err := a.tell(fmt.Sprintf("connect %d:%d", p.two.id, demoPort)); err != nil {
		return err
	}
	if err := p.hear(ctx, a, "connected", "alice connects"); err != nil {
		return err
	}
	return p.hear(ctx, b, "accepted", "bob accepts")
}

// hear waits for the named line of the application and records it as a step.
func (p *plot) hear(ctx context.Context, a *actor, what, name string) error {
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	l, err := a.hear(limited, what)
	return p.t.step(name, l.Detail, err)
}

// memory follows the applications through windows, RMA and fences.
func (p *plot) memory(ctx context.Context) error {
	for _, s := range []struct {
		who        *actor
		what, name string
	}{
		{p.alice, "window", "alice registers a window"},
		{p.bob, "window", "bob registers a window"},
		{p.alice, "wrote", "alice writes into bob's memory"},
		{p.bob, "saw-signal", "bob polls, sees her signal"},
		{p.bob, "read", "bob reads alice's memory"},
		{p.bob, "wrote", "bob writes into alice's memory"},
		{p.alice, "saw-signal", "alice polls, sees his signal"},
		{p.alice, "read", "alice reads bob's memory"},
	} {
		if err := p.hear(ctx, s.who, s.what, s.name); err != nil {
			return err
		}
	}
	return nil
}

// loss kills the node that bob is on, while alice is blocked in a receive.
func (p *plot) loss(ctx context.Context) error {
	if err := p.hear(ctx, p.alice, "blocked", "alice blocks in a receive"); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	killed := time.Now()
	p.two.proc.kill()
	lost := p.two.incarnation()
	p.t.step("kill -9 node-2", fmt.Sprintf("node %s, pid %d", lost, p.two.proc.pid()), nil)

	reset, err := p.alice.hear(limited, "reset")
	if err := p.t.step("alice's receive: ECONNRESET", after(reset.At, killed, reset.Detail), err); err != nil {
		return err
	}
	if err := p.seen(limited, fabric.NodeRemoved, lost, "", func(name string, at time.Time, detail string, err error) error {
		return p.t.step(name, after(at, killed, detail), err)
	}); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "no-device", "alice connects to the lost node"); err != nil {
		return err
	}
	if err := p.hear(ctx, p.bob, "node-gone", "bob learns that his node is gone"); err != nil {
		return err
	}
	return p.t.step("bob ends", "", p.bob.dismiss(limited))
}

// seen waits for an event of node-2 at node-1, where alice prints it, and at the host, and has each
// recorded. An empty reason is any.
func (p *plot) seen(ctx context.Context, kind fabric.EventKind, incarnation, reason string, record func(name string, at time.Time, detail string, err error) error) error {
	word, name := "node-added", "NODE_ADDED"
	if kind == fabric.NodeRemoved {
		word, name = "node-removed", "NODE_REMOVED"
	}
	printed, err := p.alice.hear(ctx, word)
	if want := incarnation + " " + reason; err == nil && !strings.HasPrefix(printed.Detail, want) {
		err = fmt.Errorf("%s says %q, want %q", name, printed.Detail, want)
	}
	if err := record(name+" at node-1", printed.At, printed.Detail, err); err != nil {
		return err
	}
	ev, at, err := p.watch.next(ctx)
	if err == nil && (ev.Kind != kind || fmt.Sprintf("%d.%d", ev.Node, ev.Generation) != incarnation || reason != "" && string(ev.Reason) != reason) {
		err = fmt.Errorf("got %v, want %s of node %s %s", ev, name, incarnation, reason)
	}
	return record(name+" at host", at, ev.String(), err)
}

// plain records a step whose time says nothing.
func (p *plot) plain(name string, _ time.Time, detail string, err error) error {
	return p.t.step(name, detail, err)
}

// after adds the time between the kill and at to detail.
func after(at, killed time.Time, detail string) string {
	if at.IsZero() {
		return detail
	}
	return fmt.Sprintf("%.1f ms after the kill: %s", ms(at.Sub(killed)), detail)
}

// comeback starts the killed node again: the same ID, the next generation.
func (p *plot) comeback(ctx context.Context) error {
	id, gen := p.two.id, p.two.gen
	st, err := p.two.start(ctx)
	if err == nil && (st.ID != id || st.Generation != gen+1) {
		err = fmt.Errorf("it is node %d.%d, want %d.%d", st.ID, st.Generation, id, gen+1)
	}
	if err := p.t.step("node-2 runs again", joined(st), err); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := p.seen(limited, fabric.NodeAdded, p.two.incarnation(), "", p.plain); err != nil {
		return err
	}
	if p.bob, err = p.crew.act("bob-again", p.two.socket()); err != nil {
		return err
	}
	if err := p.hear(ctx, p.bob, "attached", "bob attaches again"); err != nil {
		return err
	}
	if err := p.connect(ctx, p.alice, p.bob); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "messages", "a message on the new connection"); err != nil {
		return err
	}
	return p.hear(ctx, p.bob, "closed", "bob sees alice close")
}

// leave ends everything in order: a node that leaves notifies the others.
func (p *plot) leave(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := p.t.step("bob ends", "", p.bob.dismiss(limited)); err != nil {
		return err
	}
	took, err := p.two.proc.terminate(limited)
	if err == nil && took > 2*time.Second {
		err = fmt.Errorf("it took %v, want 2 s at most", took)
	}
	if err := p.t.step("SIGTERM to node-2", fmt.Sprintf("left within %v", took.Round(time.Millisecond)), err); err != nil {
		return err
	}
	if err := p.seen(limited, fabric.NodeRemoved, p.two.incarnation(), "left", p.plain); err != nil {
		return err
	}
	if err := p.t.step("alice ends", "", p.alice.dismiss(limited)); err != nil {
		return err
	}
	if err := p.t.step("no event too many", "", errors.Join(p.alice.silent(), p.watch.silent())); err != nil {
		return err
	}
	p.watch.close()
	for _, m := range []*member{p.one, p.host} {
		took, err := m.proc.terminate(limited)
		if err := p.t.step("SIGTERM to "+m.name, fmt.Sprintf("left within %v", took.Round(time.Millisecond)), err); err != nil {
			return err
		}
	}
	return nil
}
