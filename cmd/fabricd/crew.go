package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A process is one child of a crew.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string        // file with its standard error
	from int64         // where in log its own lines begin
	done chan struct{} // closed when the wait for it has returned
	err  error         // of the wait; read after done
}

// A crew starts processes of this program and leaves none behind. Its children
// die with it, whatever ends it: the kernel kills them when their parent's
// thread is gone. All are started by the goroutine that holds that thread.
type crew struct {
	exe      string        // this program
	dir      string        // for logs and the directories of members
	env      []string      // variables that the children get too
	settings []string      // arguments that every member runs with
	limit    time.Duration // for a member to join
	// keepLogs gives all processes of one name one log, to which the next run
	// appends. Without it each process has a new log.
	keepLogs bool
	echo     func(name string) io.Writer // gets a copy of the child's log; nil: the log alone
	all      []*process
}

// start runs this program with args as a child called name. A nil stdout
// discards its output. The returned writer is its standard input.
func (c *crew) start(name string, stdout io.Writer, args ...string) (*process, io.WriteCloser, error) {
	log, from, err := c.openLog(name)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(c.exe, args...)
	cmd.Stdout, cmd.Stderr = stdout, log
	if c.echo != nil {
		cmd.Stderr = io.MultiWriter(log, c.echo(name))
	}
	cmd.Env = append(withoutFabric(os.Environ()), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C is for the parent alone, which then ends the others in order
		Pdeathsig: syscall.SIGKILL, // and if the parent is killed, so are they
	}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		log.Close()
		return nil, nil, err
	}
	p := &process{name: name, cmd: cmd, log: log.Name(), from: from, done: make(chan struct{})}
	go func() { // ends with the child; crew.stop waits for it
		defer close(p.done)
		defer log.Close() // the wait ends behind the last line
		p.err = cmd.Wait()
	}()
	c.all = append(c.all, p)
	return p, stdin, nil
}

// openLog opens the log of a process that is about to start, and returns where
// its lines will begin.
func (c *crew) openLog(name string) (*os.File, int64, error) {
	if !c.keepLogs {
		f, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("%02d-%s.log", len(c.all), name)))
		return f, 0, err
	}
	f, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// withoutFabric returns environ without fabricd's settings: a crew's processes
// get theirs as flags.
func withoutFabric(environ []string) []string {
	var rest []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "FABRIC_") {
			rest = append(rest, kv)
		}
	}
	return rest
}

// pid returns the process's ID.
func (p *process) pid() int { return p.cmd.Process.Pid }

// kill kills p with SIGKILL and waits for its end.
func (p *process) kill() {
	// It fails only for a process that has ended.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate asks p to end with SIGTERM and returns how it ended and how long
// it took.
func (p *process) terminate(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-p.done:
		return time.Since(began), p.err
	case <-ctx.Done():
		return time.Since(began), ctx.Err()
	}
}

// running reports whether p has not ended.
func (p *process) running() bool { return !wait.Over(p.done) }

// tail returns the last lines that p logged.
func (p *process) tail(lines int) (string, error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "", err
	}
	text = text[min(p.from, int64(len(text))):]
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n"), nil
}

// forget drops a process that has ended.
func (c *crew) forget(p *process) {
	c.all = slices.DeleteFunc(c.all, func(q *process) bool { return q == p })
}

// stop kills the processes that still run and waits for all. It returns how many it killed.
func (c *crew) stop() int {
	killed := 0
	for _, p := range c.all {
		if p.running() {
			killed++
			p.kill()
		}
	}
	return killed
}

// tails returns the last lines that each process logged, for a failure.
func (c *crew) tails(lines int) string {
	var out strings.Builder
	for _, p := range c.all {
		if text, err := p.tail(lines); err == nil && text != "" {
			fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(p.log), text)
		}
	}
	return out.String()
}
