package deploytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// labScenario is a run of the compose lab. One of its nodes is killed.
const labScenario = `version: 1
name: containers
on: [compose]
cluster: {nodes: 3, detection: normal}
workload:
  pairs: mesh
  messages: {size: 64..2048, rate: 20}
  rma: {size: 8..4096, rate: 20, window: 64KiB, reads: 30%%, fence: 5, signal: 3}
duration: %s
timeline: [{at: 1s, node: {id: 2, do: kill, for: 500ms}}]
expect:
  - removed: {node: 2, times: 1, within: 1s}
  - added: {node: 2, within: 5s}
  - mesh: {within: 5s}
figures: [time_to_removed]
`

// labLabel is on every container and network of a run.
const labLabel = "io.fabricd.chaos"

// TestChaosRunsInContainers runs a scenario in the compose lab as users do, and
// interrupts another in its middle: neither leaves anything behind.
func TestChaosRunsInContainers(t *testing.T) {
	if withoutDocker(t) {
		return
	}
	image := built(t).fabricd
	dir, err := os.MkdirTemp("", prefix) // short: there are sockets below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copyOut(t, image, "fabricd", filepath.Join(dir, "fabricd"))
	t.Run("to its end", func(t *testing.T) {
		r := startLab(t, dir, image, "4s")
		if err := r.end(); err != nil {
			t.Errorf("%v:\n%s%s", err, &r.stdout, &r.stderr)
		}
		if said := r.stdout.String(); !strings.HasPrefix(said, "green") || !strings.Contains(said, "containers on compose, seed 1") ||
			!strings.Contains(said, "time_to_removed") {
			t.Errorf("it printed\n%s", said)
		}
		r.leavesNothing()
	})
	t.Run("interrupted", func(t *testing.T) {
		r := startLab(t, dir, image, "60s")
		eventually(t, waitLimit, func() error {
			if !strings.Contains(r.stderr.String(), "node kill") {
				return fmt.Errorf("nothing was killed:\n%s", &r.stderr)
			}
			return nil
		})
		// Two daemons at least and three applications: looking for them does find them.
		running := r.things("ps", "-a")
		if len(running) < 5 || len(r.things("network", "ls")) != 1 {
			t.Errorf("containers %q, want five at least, and a network", running)
		}
		r.namedAndBound(running)
		if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := r.end()
		t.Logf("it ended %v after it was asked to", time.Since(began).Round(time.Millisecond))
		ended, ok := errors.AsType[*exec.ExitError](err)
		if !ok || ended.ExitCode() != 2 || r.stdout.String() != "" {
			t.Errorf("%v, printed %q; want exit code 2 and no verdict", err, &r.stdout)
		}
		lines := strings.Split(strings.TrimSpace(r.stderr.String()), "\n")
		if last := lines[len(lines)-1]; last != "fabricd: interrupted after 0 of 1 runs" {
			t.Errorf("its last line is %q, want that it was interrupted", last)
		}
		r.leavesNothing()
	})
}

// A labRun is a `fabricd chaos run` in the compose lab.
type labRun struct {
	t              *testing.T
	dir            string // its temporary files
	cmd            *exec.Cmd
	cancel         context.CancelFunc
	stdout, stderr text
}

// startLab starts a run, with a lock and temporary files of its own, so that a run
// of somebody else is not in its way.
func startLab(t *testing.T, dir, image, duration string) *labRun {
	t.Helper()
	r := &labRun{t: t, dir: filepath.Join(dir, "t"+duration)}
	file := filepath.Join(dir, "containers.yaml")
	if err := errors.Join(os.Mkdir(r.dir, 0o700), os.WriteFile(file, fmt.Appendf(nil, labScenario, duration), 0o600)); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithTimeout(t.Context(), callLimit)
	r.cmd = exec.CommandContext(ctx, filepath.Join(dir, "fabricd"), "chaos", "run", file, "--on", "compose", "--image", image)
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) } // so that it cleans up
	r.cmd.WaitDelay = waitLimit
	r.cmd.Env = append(os.Environ(), "TMPDIR="+r.dir)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cancel)
	return r
}

// end waits for the end of the run.
func (r *labRun) end() error {
	defer r.cancel()
	return r.cmd.Wait()
}

// name begins the names of all that the run makes.
func (r *labRun) name() string { return fmt.Sprintf("fch-%d-", r.cmd.Process.Pid) }

// things lists those containers or networks that have the label of the run.
func (r *labRun) things(list ...string) []string {
	r.t.Helper()
	const format = "--format={{.ID}} {{.Label \"" + labLabel + "\"}}"
	var all []string
	for line := range strings.Lines(docker(r.t, append(list, "--filter", "label="+labLabel, "--no-trunc", format)...)) {
		if id, label, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(label, r.name()) {
			all = append(all, id)
		}
	}
	return all
}

// namedAndBound checks that containers have the run's name, and no volume, which
// their end might leave.
func (r *labRun) namedAndBound(ids []string) {
	r.t.Helper()
	for _, id := range ids {
		c := inspect[struct {
			Name   string
			Mounts []struct{ Type, Source string }
		}](r.t, id)
		if !strings.HasPrefix(c.Name, "/"+r.name()) {
			r.t.Errorf("container %s does not begin with %s", c.Name, r.name())
		}
		for _, m := range c.Mounts {
			if m.Type != "bind" || !strings.HasPrefix(m.Source, r.dir) {
				r.t.Errorf("%s mounts the %s %s, want directories of the run only", c.Name, m.Type, m.Source)
			}
		}
	}
}

// leavesNothing looks for what the run has left, by label and by name.
func (r *labRun) leavesNothing() {
	r.t.Helper()
	for what, list := range map[string][]string{
		"containers": {"ps", "-a"}, "networks": {"network", "ls"}, "volumes": {"volume", "ls"},
	} {
		left := strings.Fields(docker(r.t, append(list, "-q", "--filter", "name="+r.name())...))
		if what != "volumes" {
			left = append(left, r.things(list...)...)
		}
		if len(left) > 0 {
			r.t.Errorf("%s are left: %q", what, left)
		}
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "fch-") {
			r.t.Errorf("%s is left", e.Name())
		}
	}
}

// A text takes what a process prints. It may be read meanwhile.
type text struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}
