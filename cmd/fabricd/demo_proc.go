package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A process is one child of the demo.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string        // file with what it wrote to standard error
	done chan struct{} // closed when it was waited for
	err  error         // of the wait; read after done
}

// A crew starts the demo's processes and leaves none behind. Its children die
// with the demo, whatever ends it: the kernel kills them when their parent's
// thread is gone. All are started by the goroutine that holds that thread.
type crew struct {
	exe string // this program
	dir string // for logs
	all []*process
}

// start runs this program with args as a child called name. stdout nil
// discards what it prints; the returned writer is its standard input.
func (c *crew) start(name string, stdout io.Writer, args ...string) (*process, io.WriteCloser, error) {
	logFile, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("%02d-%s.log", len(c.all), name)))
	if err != nil {
		return nil, nil, err
	}
	defer logFile.Close()
	cmd := exec.Command(c.exe, args...)
	cmd.Stdout, cmd.Stderr = stdout, logFile
	cmd.Env = append(withoutFabric(os.Environ()), "GOTRACEBACK=single", "FABRICD_PANIC=crash")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C is for the demo alone, which then ends the others in order
		Pdeathsig: syscall.SIGKILL, // and if the demo is killed, so are they
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	p := &process{name: name, cmd: cmd, log: logFile.Name(), done: make(chan struct{})}
	go func() { // ends with the child; crew.stop waits for it
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	c.all = append(c.all, p)
	return p, stdin, nil
}

// withoutFabric returns environ without fabricd's settings: the demo's
// processes get theirs as flags.
func withoutFabric(environ []string) []string {
	var rest []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "FABRIC_") {
			rest = append(rest, kv)
		}
	}
	return rest
}

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
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop kills what still runs and waits for all. It returns how many it killed.
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
		text, err := os.ReadFile(p.log)
		if err != nil || len(text) == 0 {
			continue
		}
		all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(p.log), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return out.String()
}

// An actor is an application of the demo, and what it has said so far.
type actor struct {
	name  string
	proc  *process
	stdin io.WriteCloser
	lines chan line // closed when it says no more
	heard []line    // lines that nobody has asked for yet; owned by the demo's goroutine
	ended bool
}

// act starts an application in a role.
func (c *crew) act(role, socket string) (*actor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	proc, stdin, err := c.start(role, w, "demo-app", role, "--socket", socket)
	w.Close() // the child has its own
	if err != nil {
		r.Close()
		return nil, err
	}
	a := &actor{name: role, proc: proc, stdin: stdin, lines: make(chan line, 64)} // a role says fewer
	go func() {                                                                   // ends with the child, which has the only other end of the pipe
		defer close(a.lines)
		defer r.Close()
		for in := bufio.NewScanner(r); in.Scan(); {
			var l line
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				l = line{Say: "failed", At: time.Now(), Error: "said " + in.Text()}
			}
			a.lines <- l
		}
	}()
	return a, nil
}

// tell gives the application a command.
func (a *actor) tell(command string) error {
	_, err := io.WriteString(a.stdin, command+"\n")
	return err
}

// hear waits until the application says what, and returns it. What it says
// meanwhile is kept for later calls. It fails when the application does.
func (a *actor) hear(ctx context.Context, what string) (line, error) {
	for i := 0; ; i++ {
		if i == len(a.heard) {
			if err := a.listen(ctx, what); err != nil {
				return line{}, err
			}
		}
		switch l := a.heard[i]; {
		case l.Say == what && l.Error == "":
			a.heard = append(a.heard[:i:i], a.heard[i+1:]...)
			return l, nil
		case l.Error != "":
			return line{}, fmt.Errorf("%s: %s: %s", a.name, l.Say, l.Error)
		}
	}
}

// listen waits for the application's next line.
func (a *actor) listen(ctx context.Context, what string) error {
	if a.ended {
		return fmt.Errorf("%s ended without saying %q", a.name, what)
	}
	select {
	case l, ok := <-a.lines:
		if !ok {
			a.ended = true
			return fmt.Errorf("%s ended without saying %q", a.name, what)
		}
		a.heard = append(a.heard, l)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has not said %q: %w", a.name, what, context.Cause(ctx))
	}
}

// dismiss ends the application by the end of its standard input.
func (a *actor) dismiss(ctx context.Context) error {
	a.stdin.Close()
	select {
	case <-a.proc.done:
		if exit, ok := errors.AsType[*exec.ExitError](a.proc.err); ok {
			return fmt.Errorf("%s: %w", a.name, exit)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", a.name, context.Cause(ctx))
	}
}
