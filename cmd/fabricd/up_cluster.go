package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

// An upCluster is the cluster of one `fabricd up`. One goroutine runs it: that of
// its crew.
type upCluster struct {
	crew        *crew
	flags       upFlags
	self        string // how a person calls this program
	kept        bool   // its directory stays
	members     []*member
	out         upPrinter
	failed      *process // the process that could not be started, for its log
	incarnation incarnations

	work    chan func() error  // for the goroutine that runs the cluster
	over    chan struct{}      // closed when work is not read any more
	workers sync.WaitGroup     // goroutines that send work
	watched context.CancelFunc // ends the watchers
}

// run starts the cluster and reports its changes until ctx is done.
func (u *upCluster) run(ctx context.Context) error {
	ctx, u.watched = context.WithCancel(ctx)
	if err := u.begin(ctx); err != nil {
		return err
	}
	if err := u.out.ready(u); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-u.work:
			if err := do(); err != nil {
				return err
			}
		}
	}
}

// begin makes the missing parts of the cluster and starts its nodes, the host first.
// They join one after the other, so that in a new cluster node-1 has ID 1.
func (u *upCluster) begin(ctx context.Context) error {
	token := filepath.Join(u.crew.dir, "join.token")
	joining := []string{"--role", "host"}
	for i := range u.flags.nodes {
		name := "host"
		if i > 0 {
			name = fmt.Sprintf("node-%d", i)
			joining = []string{"--join", u.members[0].dataAddr, "--token-file", token}
		}
		m, err := u.crew.member(name, joining...)
		if err != nil {
			return err
		}
		if i == 0 {
			// A token that has ended is replaced: nodes may be new in a later run.
			if err = m.initCluster(token, "--if-missing"); err != nil {
				return fmt.Errorf("no cluster in %s: %w", u.crew.dir, err)
			}
		}
		m.http = "127.0.0.1:0"
		u.members = append(u.members, m)
		if err := u.join(ctx, m); err != nil {
			return fmt.Errorf("%s did not start: %w", m.name, err)
		}
	}
	if err := agree(ctx, u.crew.limit, u.members); err != nil {
		if i := slices.IndexFunc(u.members, func(m *member) bool { return !m.proc.running() }); i >= 0 {
			u.failed = u.members[i].proc
		}
		return err
	}
	return nil
}

// join starts m and waits until it is in the cluster.
func (u *upCluster) join(ctx context.Context, m *member) error {
	_, err := m.start(ctx)
	u.failed = m.proc
	if err != nil {
		return err
	}
	u.failed = nil
	u.incarnation[m.id] = incarnationSeen{m.gen, true}
	u.await(m)
	u.watch(ctx, m)
	return m.keepPorts()
}

// await reports the end of m's process.
func (u *upCluster) await(m *member) {
	done := m.proc.done
	u.workers.Go(func() {
		select {
		case <-done:
			u.send(func() error { return u.onEnd(m) })
		case <-u.over:
		}
	})
}

// send has do done by the goroutine that runs the cluster, while it does.
func (u *upCluster) send(do func() error) {
	select {
	case u.work <- do:
	case <-u.over:
	}
}

// watchAgain is how long after the end of a fabricd its events are asked for again.
const watchAgain = 100 * time.Millisecond

// watch takes the events of m's fabricd, across its restarts, until ctx is done.
func (u *upCluster) watch(ctx context.Context, m *member) {
	u.workers.Go(func() {
		for {
			// It ends with the fabricd, which is reported elsewhere.
			_ = m.admin.Events(ctx, func(e daemon.NodeEvent) error {
				u.send(func() error { return u.onEvent(m, e) })
				return ctx.Err()
			})
			if !wait.For(ctx.Done(), watchAgain) {
				return
			}
		}
	})
}

// onEnd reports that m's process has ended by itself.
func (u *upCluster) onEnd(m *member) error {
	u.crew.forget(m.proc)
	left := slices.DeleteFunc(slices.Clone(u.members), func(m *member) bool { return !m.proc.running() })
	if err := u.out.ended(m, u.flags.restart, len(left)); err != nil {
		return err
	}
	if u.flags.restart {
		u.later(m)
	} else if len(left) == 0 {
		return errors.New("no node is left")
	}
	return nil
}

// later starts m again, a while after its end.
func (u *upCluster) later(m *member) {
	u.workers.Go(func() {
		if wait.For(u.over, upRestart) {
			u.send(func() error { return u.startAgain(m) })
		}
	})
}

// startAgain starts a member whose process has ended. Its events report its join.
func (u *upCluster) startAgain(m *member) error {
	if err := m.launch(); err != nil {
		u.later(m)
		return u.out.failedAgain(m, err)
	}
	u.await(m)
	return u.out.started(m)
}

// onEvent reports an event of a member, unless it is known.
func (u *upCluster) onEvent(from *member, e daemon.NodeEvent) error {
	c, isNew := u.incarnation.apply(from.id, e)
	if !isNew {
		return nil
	}
	if i := slices.IndexFunc(u.members, func(m *member) bool { return m.name == c.name }); i >= 0 && c.joined {
		u.members[i].id, u.members[i].gen = c.id, c.gen
	}
	return u.out.change(c)
}

// stop ends every process: the nodes first and then the host, so that it sees them
// leave. A process that does not end in time is killed, and all are when hurry is done.
func (u *upCluster) stop(ctx, hurry context.Context) error {
	if ctx.Err() != nil {
		u.out.stopping()
	}
	close(u.over)
	if u.watched != nil {
		u.watched()
	}
	u.workers.Wait()
	var late []string
	if len(u.members) > 0 {
		late = append(leave(hurry, u.members[1:]), leave(hurry, u.members[:1])...)
	}
	u.crew.stop()
	for _, m := range u.members {
		m.admin.Close()
	}
	switch {
	case hurry.Err() != nil:
		return errors.New("interrupted twice: what still ran was killed")
	case len(late) > 0:
		return fmt.Errorf("%s did not end within %v and had to be killed", strings.Join(late, ", "), upLeave)
	}
	return nil
}

// leave asks members to end, waits until they have, and returns the names of those
// that have not in time.
func leave(hurry context.Context, members []*member) (late []string) {
	ctx, cancel := context.WithTimeout(hurry, upLeave)
	defer cancel()
	members = slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return m.proc == nil || !m.proc.running() })
	for _, m := range members {
		// They fail only for a process that has ended. SIGCONT continues a stopped
		// process, which could not leave otherwise.
		_ = m.proc.cmd.Process.Signal(syscall.SIGTERM)
		_ = m.proc.cmd.Process.Signal(syscall.SIGCONT)
	}
	for _, m := range members {
		select {
		case <-m.proc.done:
		case <-ctx.Done():
			late = append(late, m.name)
		}
	}
	return late
}
