package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// runReal runs one schedule with real processes: on this machine, in network
// namespaces, or in containers. With an error it returns the records so far.
func runReal(ctx context.Context, lab scenario.Lab, s *scenario.Schedule, o *Options) (_ []history.Record, err error) {
	name := ownName(o.worker)
	spawn := newSpawner()
	defer spawn.close()
	b := cleanup{tmp: os.TempDir()}
	var site site = newMachine(o.Exe, name, spawn, o.worker)
	switch lab {
	case scenario.Netns:
		site = newNamespaces(o.Exe, name, spawn)
	case scenario.Compose:
		site, b.docker = newContainers(o.Image, name), newDocker(dockerSocket())
	}
	if n := s.Scenario.Cluster.Nodes; n > maxNodes {
		return nil, refusef("%d nodes: this lab has room for %d; sim has for more", n, maxNodes)
	}
	if err := site.check(ctx, s); err != nil {
		return nil, err
	}
	if err := b.removeDead(ctx, o.say); err != nil {
		return nil, err
	}
	dir := b.tmpOf(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	j, err := startCleaner(o.Exe, name, b.docker != nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// An interrupt does not end the cleanup.
	clean := context.WithoutCancel(ctx)
	defer func() {
		err = errors.Join(err, site.close(clean), os.RemoveAll(dir))
		left, leftErr := b.leftovers(clean)
		if leftErr == nil && slices.Contains(left, name) {
			leftErr = fmt.Errorf("something of run %s is left behind", name)
		}
		err = errors.Join(err, leftErr)
		if err == nil || leftErr == nil {
			err = errors.Join(err, j.dismiss())
		}
	}()
	c := &cluster{lab: lab, dir: dir, dirMode: 0o700, site: site, spawn: spawn, schedule: s,
		providers: o.Providers, beat: o.beat(), faults: needsFaults(site, s), say: o.say}
	if lab == scenario.Compose {
		c.dirMode = 0o777
	}
	return c.record(ctx, o)
}

// record runs the schedule at the site, which was checked, and collects the records.
func (c *cluster) record(ctx context.Context, o *Options) (_ []history.Record, err error) {
	if c.zero, err = workload.Monotonic(); err != nil {
		return nil, err
	}
	if c.clock, err = workload.NewClock(c.zero); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(c.dir, "lab.jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c.log = workload.NewLog(out, history.Lab, c.clock)
	c.followers.ctx, c.followers.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer c.kill()
	begin := c.schedule.Begin(c.lab)
	begin.Paths = c.paths()
	begin.Build, begin.Started, begin.Command = o.Version, time.Now().UTC().Format(time.RFC3339), o.command(c.schedule, c.lab)
	c.log.Put(begin)
	err = c.phases(ctx)
	err = errors.Join(err, c.failure())
	end := &history.End{Complete: err == nil}
	if err != nil {
		end.Why = oneLine([]byte(err.Error()))
		end.Why = end.Why[:min(len(end.Why), 1000)]
	}
	c.kill()
	c.readLogs()
	c.log.Put(end)
	if logErr := c.log.Err(); logErr != nil {
		return nil, errors.Join(err, logErr)
	}
	records, readErr := c.collect()
	return records, errors.Join(err, readErr, c.keepLogs(o.logs))
}

// phases leads the cluster through its run.
func (c *cluster) phases(ctx context.Context) error {
	if err := c.site.open(ctx, c.schedule.Scenario.Cluster.Nodes); err != nil {
		return err
	}
	c.say("starting %d nodes", c.schedule.Scenario.Cluster.Nodes)
	if err := c.up(ctx); err != nil {
		return err
	}
	c.followers.wg.Go(c.watchStall)
	c.followers.wg.Go(c.watchPaths)
	held := c.held(ctx, history.PhaseBaseline)
	if err := c.play(ctx); err != nil {
		return err
	}
	// The workload runs for a while before anything is broken.
	if !pause(ctx, lead) {
		return context.Cause(ctx)
	}
	c.warmed(ctx, held)
	c.say("all nodes know each other, the applications talk: %s of faults begin", c.schedule.Scenario.Duration)
	if err := c.run(ctx); err != nil {
		return err
	}
	c.quiet(ctx)
	c.down(ctx)
	return ctx.Err()
}

// lead is how long the workload runs before the zero of the timeline.
const lead = time.Second

// collect reads the logs of all sources and merges them.
func (c *cluster) collect() ([]history.Record, error) {
	files, err := filepath.Glob(filepath.Join(c.dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	more, err := filepath.Glob(filepath.Join(c.dir, "n*", "app-*.jsonl"))
	if err != nil {
		return nil, err
	}
	var logs [][]history.Record
	for _, file := range append(files, more...) {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		records, err := history.Read(f, filepath.Base(file))
		f.Close()
		if err != nil {
			return nil, err
		}
		logs = append(logs, records)
	}
	return history.Merge(logs...), nil
}

// maxLog bounds the kept part of one process's log, in bytes.
const maxLog = 1 << 20

// keepLogs puts the ends of the processes' output into logs.
func (c *cluster) keepLogs(logs map[string][]byte) error {
	for _, s := range c.nodes {
		files, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if len(text) > 0 && logs != nil {
				logs[fmt.Sprintf("n%d-%s", s.index, filepath.Base(file))] = text[max(0, len(text)-maxLog):]
			}
		}
	}
	return nil
}

// Lines that no daemon may print: Go's own messages at the end of a process, and this
// tree's for states that must not happen.
var forbidden = []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", "BUG: ", "SIGBUS", "SIGSEGV"}

// readLogs looks for forbidden lines in the daemons' output. All processes have ended.
func (c *cluster) readLogs() {
	for _, s := range c.nodes {
		for run := 1; run <= s.daemon.run; run++ {
			text, err := os.ReadFile(s.file(fmt.Sprintf("daemon-%d.log", run)))
			if errors.Is(err, fs.ErrNotExist) {
				continue // a usurper's
			}
			if err != nil {
				c.fail(err)
				continue
			}
			for line := range bytes.Lines(text) {
				if says(string(line)) {
					c.log.Put(&history.Logged{Target: history.Daemon(s.index, run), Line: oneLine(line[:min(len(line), 1000)])})
				}
			}
		}
	}
}

func says(line string) bool {
	return slices.ContainsFunc(forbidden, func(f string) bool { return strings.Contains(line, f) })
}

// A cleaner is the process that cleans up if this one is killed.
type cleaner struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// startCleaner starts the cleaner of run name. It has a session of its own, so
// that no terminal ends it together with the runner.
func startCleaner(exe string, name Name, containers bool) (*cleaner, error) {
	args := []string{"chaos", "cleanup", string(name)}
	if containers {
		args = append(args, "--containers")
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cleaner: %w", err)
	}
	return &cleaner{cmd, in}, nil
}

// dismiss ends a cleaner that has nothing to do.
func (c *cleaner) dismiss() error {
	_, err := io.WriteString(c.stdin, cleanerDone)
	return errors.Join(err, c.stdin.Close(), c.cmd.Wait())
}
