package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A spawner starts processes. The kernel kills a child with the thread that
// started it, so one goroutine starts all and keeps its thread: whatever ends
// the runner ends its children.
type spawner struct {
	requests chan spawnRequest
	done     chan struct{}
}

type spawnRequest struct {
	cmd    *exec.Cmd
	answer chan error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan spawnRequest), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		for r := range s.requests {
			r.answer <- r.cmd.Start()
		}
	}()
	return s
}

// close ends the spawner, and with it every child that still runs.
func (s *spawner) close() {
	close(s.requests)
	<-s.done
}

// start starts a program as a child that dies with the runner and does not get the
// terminal's signals; its output goes to the file log.
func (s *spawner) start(argv []string, log string) (child, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = environ()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	r := spawnRequest{cmd, make(chan error)}
	s.requests <- r
	if err := <-r.answer; err != nil {
		return nil, err
	}
	p := &process{begun: begun{number: cmd.Process.Pid, file: log, over: make(chan struct{})}, cmd: cmd}
	go func() { // ends with the child, which its lab waits for
		defer close(p.over)
		_ = cmd.Wait() // how it ended is in its state
	}()
	return p, nil
}

// A begun is what children of all kinds have in common.
type begun struct {
	number int           // of its process on this machine
	file   string        // with its output
	over   chan struct{} // closed when it has ended and was waited for
}

func (b *begun) pid() int               { return b.number }
func (b *begun) ended() <-chan struct{} { return b.over }
func (b *begun) log() string            { return b.file }

// running reports whether the child has not ended.
func (b *begun) running() bool { return !wait.Over(b.over) }

// A process is a child that is a process of this machine.
type process struct {
	begun
	cmd *exec.Cmd
}

// code returns the exit status of a process that has ended, or minus the signal
// that ended it.
func (p *process) code() int {
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -int(ws.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// frozen reports whether p is stopped.
func (p *process) frozen() bool { return stateOf(p.pid()) == "T" }

// signal sends sig. An ended process gets none, which is no error.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to process %d: %w", sig, p.pid(), err)
	}
	return nil
}

// kill kills p with SIGKILL. It does not wait: the kernel takes a moment.
func (p *process) kill(context.Context) error { return p.signal(syscall.SIGKILL) }

// stop stops p with SIGSTOP and waits until all of it stands still.
func (p *process) stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return await(ctx, processLimit, func() error {
		if s := stateOf(p.pid()); s != "T" {
			return fmt.Errorf("process %d is in state %q, want T", p.pid(), s)
		}
		return nil
	})
}

// cont lets p go on.
func (p *process) cont(context.Context) error { return p.signal(syscall.SIGCONT) }

// terminate asks p to end and waits for it; after limit it is killed, which is
// an error.
func (p *process) terminate(ctx context.Context, limit time.Duration) error {
	return endWithin(ctx, p, limit, func() error { return p.signal(syscall.SIGTERM) })
}

// askEvery is how often a process is asked to end. The first process of a
// container does not receive it while it begins: the kernel drops signals that such
// a process has no handler for.
const askEvery = time.Second

// endWithin asks c to end and waits for it; after limit it is killed, which is
// an error.
func endWithin(ctx context.Context, c child, limit time.Duration, ask func() error) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for asking := true; asking; {
		if err := ask(); err != nil {
			return err
		}
		select {
		case <-c.ended():
			return nil
		case <-ticker.C:
		case <-timer.C:
			asking = false
		case <-ctx.Done():
			asking = false
		}
	}
	err := c.kill(context.WithoutCancel(ctx))
	<-c.ended()
	return errors.Join(err, fmt.Errorf("process %d did not end within %v of SIGTERM and was killed", c.pid(), limit))
}

// tailOf returns the last lines of a file.
func tailOf(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

const (
	processLimit = 5 * time.Second      // for actions that take milliseconds on an idle machine
	pollEvery    = 5 * time.Millisecond // for states that have no event to wait on
)

// errGiveUp in check's error makes await return at once.
var errGiveUp = errors.New("no use in waiting")

// await calls check until it returns nil; after limit, or when ctx is done, it returns
// check's last error. It polls, since another process's state has no event.
func await(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil || errors.Is(err, errGiveUp) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}
