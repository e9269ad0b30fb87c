package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// errNotRunning is the error of an action on a process that does not run.
var errNotRunning = errors.New("does not run")

// node applies an action to the daemon of a node. The node's act is held.
func (c *cluster) node(ctx context.Context, s *node, a scenario.Action) (effect, error) {
	n := a.Node
	switch n.Do {
	case scenario.Start:
		return c.startBoth(ctx, s)
	case scenario.Usurp:
		return c.usurp(ctx, s)
	}
	d, source, err := s.daemon.running()
	if err != nil {
		return nil, err
	}
	switch n.Do {
	case scenario.Kill, scenario.Terminate:
		end := c.killChild
		if n.Do == scenario.Terminate {
			end = c.terminate
		}
		proof, err := end(ctx, d, source)
		if err != nil {
			return nil, err
		}
		return s.ended(proof, n.For.Set, &s.daemon, s.startDaemon), nil
	case scenario.Stop:
		return c.stop(ctx, d, source)
	case scenario.Replace:
		return c.replace(ctx, s, d, source)
	case scenario.Ban:
		return c.ban(ctx, s)
	case scenario.Remove:
		return c.remove(ctx, s)
	case scenario.Damage:
		return c.damage(ctx, s, d, source, a.Seed)
	}
	return nil, fmt.Errorf("do: %q: the lab does not know it", n.Do)
}

// decideLimit bounds a decision about a node, until all nodes know of it.
const decideLimit = 10 * time.Second

// ban has the host ban a node, and allow it again when it is taken back.
func (c *cluster) ban(ctx context.Context, s *node) (effect, error) {
	host := c.nodes[0].admin
	if _, err := host.BanNode(ctx, s.name(), "chaos", decideLimit); err != nil {
		return nil, err
	}
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		_, err := host.AllowNode(ctx, s.name(), false, decideLimit)
		return 1, "banned at every node", err
	}), nil
}

// remove has the host remove a node, whose daemon ends for good. When it is taken
// back another machine comes in its place.
func (c *cluster) remove(ctx context.Context, s *node) (effect, error) {
	if _, err := c.nodes[0].admin.RemoveNode(ctx, s.name(), decideLimit); err != nil {
		return nil, err
	}
	return s.later(&s.daemon, func(ctx context.Context) (uint64, string, error) {
		d, source := s.daemon.current()
		if _, err := c.killChild(ctx, d, source); err != nil {
			return 1, "removed at every node", err
		}
		return s.comeAnew(ctx)
	}), nil
}

// startBoth starts a node's daemon, and its application if it has none yet.
func (c *cluster) startBoth(ctx context.Context, s *node) (effect, error) {
	if err := s.startDaemon(ctx); err != nil {
		return nil, err
	}
	if app, _ := s.app.current(); app == nil {
		if err := s.startApp(ctx); err != nil {
			return nil, err
		}
	}
	return done{fired: 1, proof: "started"}, nil
}

// later does something to a node when the effect is taken back. A start is due until then.
func (s *node) later(r *role, undo func(context.Context) (uint64, string, error)) effect {
	r.due.Add(1)
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		s.act.Lock()
		defer s.act.Unlock()
		defer r.due.Add(-1)
		return undo(ctx)
	})
}

// ended is the effect of the end of a node's process, which comes back or not: start
// starts it again then.
func (s *node) ended(proof string, comesBack bool, r *role, start func(context.Context) error) effect {
	if !comesBack {
		return done{fired: 1, proof: proof}
	}
	return s.later(r, func(ctx context.Context) (uint64, string, error) { return 1, proof, start(ctx) })
}

// killChild kills a process, which cannot leave in order. The record is written when
// the signal is out; then it waits until nothing is left of the process.
func (c *cluster) killChild(ctx context.Context, p child, source history.Source) (proof string, err error) {
	if err := p.kill(ctx); err != nil {
		return "", err
	}
	c.log.Put(&history.Process{Target: source, Did: history.DidKill})
	<-p.ended()
	return fmt.Sprintf("process %d is gone", p.pid()), nil
}

// terminate asks a daemon to end in order, and waits for it.
func (c *cluster) terminate(ctx context.Context, d child, source history.Source) (proof string, err error) {
	c.log.Put(&history.Process{Target: source, Did: history.DidTerminate})
	began := time.Now()
	err = d.terminate(ctx, endLimit)
	return fmt.Sprintf("ended within %v with code %d", time.Since(began).Round(time.Millisecond), d.code()), err
}

// stop freezes a process until it is taken back.
func (c *cluster) stop(ctx context.Context, p child, source history.Source) (effect, error) {
	if err := p.stop(ctx); err != nil {
		return nil, err
	}
	c.log.Put(&history.Process{Target: source, Did: history.DidStop})
	proof := fmt.Sprintf("process %d was in state %s", p.pid(), stateOf(p.pid()))
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		if !p.running() { // another action has killed it meanwhile
			return 1, proof, nil
		}
		c.log.Put(&history.Process{Target: source, Did: history.DidContinue})
		return 1, proof, p.cont(ctx)
	}), nil
}

// replace kills a daemon and, when it is taken back, starts another machine in
// its place, which knows nothing of it.
func (c *cluster) replace(ctx context.Context, s *node, d child, source history.Source) (effect, error) {
	if s.index == 0 {
		return nil, errors.New("the host's state is the cluster: it cannot be replaced")
	}
	if _, err := c.killChild(ctx, d, source); err != nil {
		return nil, err
	}
	return s.later(&s.daemon, s.comeAnew), nil
}

// comeAnew starts a node's daemon without its former state. act is held.
func (s *node) comeAnew(ctx context.Context) (uint64, string, error) {
	_, last := s.daemon.current()
	s.mu.Lock()
	s.state = fmt.Sprintf("state-%d", last.Run+1)
	s.mu.Unlock()
	return 1, "another machine is in its place", s.startDaemon(ctx)
}

// usurp starts a second host at a node, with a copy of the host's state.
func (c *cluster) usurp(ctx context.Context, s *node) (effect, error) {
	if _, _, err := s.daemon.running(); err == nil {
		return nil, errors.New("its own daemon runs: usurp wants a node that is late, or was killed")
	}
	host := c.nodes[0]
	if err := copyLive(s.file("usurped"), host.file(host.state)); err != nil {
		return nil, fmt.Errorf("copy the host's state: %w", err)
	}
	args := append(s.runArgs(c.nodes[0].name(), "usurped", "usurper-"), "--role", "host", "--join", c.hostAddr())
	source := s.daemon.next()
	u, err := c.site.start(ctx, s, "usurper", args...)
	if err != nil {
		return nil, err
	}
	s.add(u)
	c.log.Put(&history.Process{Target: source, Did: history.DidStart, Detail: "a second host"})
	c.watchEnd(u, source)
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		if !u.running() {
			return 1, fmt.Sprintf("it ended with code %d: %s", u.code(), tailOf(u.log(), 1)), nil
		}
		c.log.Put(&history.Process{Target: source, Did: history.DidKill})
		err := u.kill(ctx)
		<-u.ended()
		return 1, "it ran until it was ended", err
	}), nil
}

// copyLive copies the state directory of a running node, as a backup would. A
// file that is about to be renamed may be gone before it is read.
func copyLive(to, from string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(from, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// app applies an action to the application of a node. The node's act is held.
func (c *cluster) app(ctx context.Context, s *node, a *scenario.App) (effect, error) {
	p, source, err := s.app.running()
	if err != nil {
		return nil, err
	}
	switch a.Do {
	case scenario.AppFlood:
		return flood(ctx, s)
	case scenario.AppKill:
		proof, err := c.killChild(ctx, p, source)
		if err != nil {
			return nil, err
		}
		return s.ended(proof, a.For.Set, &s.app, s.startApp), nil
	case scenario.AppStop:
		return c.stop(ctx, p, source)
	case scenario.AppSlow:
		err := s.instruct(ctx, func(w *workload.Control) { w.Slow = a.Rate })
		return undoBy(func(ctx context.Context) (uint64, string, error) {
			return 1, fmt.Sprintf("received %d messages a second", a.Rate), s.instruct(ctx, func(w *workload.Control) { w.Slow = 0 })
		}), err
	case scenario.AppClose:
		return done{fired: 1, proof: "closed all and began anew"}, s.instruct(ctx, func(w *workload.Control) { w.Anew++ })
	}
	return nil, fmt.Errorf("do: %q: the lab does not know it", a.Do)
}

// floodLimit bounds the time in which a node has to refuse more.
const floodLimit = 10 * time.Second

// flood takes all the memory that the node gives out. The lab is the application.
func flood(ctx context.Context, s *node) (effect, error) {
	ctx, cancel := context.WithTimeout(ctx, floodLimit)
	defer cancel()
	f, err := workload.NewFlood(ctx, s.file("app.sock"))
	if err != nil {
		return nil, err
	}
	// It has been refused for want of memory if most of it is given out: alone one
	// application gets nine sixteenths.
	st, err := s.status(ctx)
	if used, of := st.Counts.ConnMemory, st.Counts.ConnMemoryLimit; err == nil && used < of/2 {
		err = fmt.Errorf("the node refused more connections with %d bytes of %d given out", used, of)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return undoBy(func(context.Context) (uint64, string, error) {
		proof := fmt.Sprintf("%d connections with %d bytes unread, and %d windows; refused more", f.Conns, f.Bytes, f.Windows)
		return uint64(f.Conns + f.Windows), proof, f.Close()
	}), nil
}

// cpu takes processor time from a node: by a quota, by busy loops, or both.
func (c *cluster) cpu(ctx context.Context, s *node, a scenario.Action) (effect, error) {
	var all several
	if a.CPU.Share != 0 {
		e, err := c.site.squeeze(ctx, s, a)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	for i := range a.CPU.Hogs {
		// A process of this machine in every lab: the load is on this machine.
		h, err := c.spawn.start([]string{"sh", "-c", "while :; do :; done"}, s.file(fmt.Sprintf("hog-%d-%d.log", a.ID, i)))
		if err != nil {
			return all, err
		}
		s.add(h)
		if err := s.enterGroups(h); err != nil {
			return all, err
		}
		all = append(all, busyLoop(h))
	}
	return all, nil
}

// busyLoop is a busy loop, as an effect.
func busyLoop(h child) effect {
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		used, err := cpuOf(h.pid())
		if err != nil {
			return 0, "", err
		}
		err = h.kill(ctx)
		<-h.ended()
		return uint64(used.Milliseconds()), fmt.Sprintf("a busy loop took %v", used), err
	})
}
