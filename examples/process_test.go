package examples

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds waits for steps that take milliseconds on an idle machine.
const patience = 15 * time.Second

// A process is a child of the test, which ends with it.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string   // printed lines that expect has not seen; closed when it prints no more
	done  chan struct{} // closed when it was waited for

	mu  sync.Mutex // guards the field below
	log strings.Builder
}

// start starts cmd. The end of the test interrupts it, as Ctrl-C does.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	r, w, err := os.Pipe() // that of exec is closed by Wait before all was read
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	p := &process{t: t, cmd: cmd, lines: make(chan string, 1024), done: make(chan struct{})}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// The kernel kills the child with the thread that has started it, also when the
	// test itself is killed: the thread waits for the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		w.Close()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState holds how it ended
		}
	}()
	if err := <-started; err != nil {
		r.Close()
		t.Fatal(err)
	}
	go p.read(r)
	t.Cleanup(p.stop)
	return p
}

// read collects the output of the process, until its end.
func (p *process) read(r io.ReadCloser) {
	defer close(p.lines)
	defer r.Close()
	for in := bufio.NewScanner(r); in.Scan(); {
		p.mu.Lock()
		p.log.WriteString(in.Text() + "\n")
		p.mu.Unlock()
		select {
		case p.lines <- in.Text():
		default: // nothing expects the log of a fabricd
		}
	}
}

// said returns all that the process has printed so far.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.String() + " printed:\n" + p.log.String()
}

// expect waits until a line matches each of the whole patterns, in any order, and passes
// over other lines. It returns the first group of the pattern that was matched last.
func (p *process) expect(patterns ...string) (group string) {
	p.t.Helper()
	limit := time.After(patience)
	for len(patterns) > 0 {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("no %q; %s", patterns, p.said())
			}
			patterns = slices.DeleteFunc(patterns, func(pattern string) bool {
				m := regexp.MustCompile("^(?:" + pattern + ")$").FindStringSubmatch(line)
				if m != nil {
					group = m[len(m)-1]
				}
				return m != nil
			})
		case <-limit:
			p.t.Fatalf("no %q within %v; %s", patterns, patience, p.said())
		}
	}
	return group
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits until the process has ended by itself, and reports whether it succeeded.
func (p *process) wait() bool {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("still runs after %v; %s", patience, p.said())
	}
	if !p.cmd.ProcessState.Success() {
		p.t.Errorf("%v; %s", p.cmd.ProcessState, p.said())
		return false
	}
	return true
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only for a process that has ended
	<-p.done
}

// stop interrupts the process, and kills it if that does not end it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // fails only for a process that has ended
	select {
	case <-p.done:
	case <-time.After(patience):
		p.kill()
		p.t.Errorf("killed: an interrupt did not end it; %s", p.said())
	}
}
