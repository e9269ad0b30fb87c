package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A spawner starts processes. The kernel kills a child with the thread that
// started it, so one goroutine starts all and keeps its thread.
type spawner struct {
	requests chan spawnRequest
	done     chan struct{}
}

type spawnRequest struct {
	cmd    *exec.Cmd
	answer chan error
}

var theSpawner *spawner

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

// start starts cmd.
func (s *spawner) start(cmd *exec.Cmd) error {
	r := spawnRequest{cmd, make(chan error)}
	s.requests <- r
	return <-r.answer
}

// A process is a child that has been started.
type process struct {
	cmd  *exec.Cmd
	log  string        // file with its standard error
	done chan struct{} // closed when it was waited for
	err  error         // of the wait; read after done
	at   time.Time     // of its end; read after done
}

// spawn starts cmd with standard error in the file log, unless cmd has one that
// gets there.
func spawn(cmd *exec.Cmd, log string) (*process, error) {
	if cmd.Stderr == nil {
		f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		cmd.Stderr = f
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := theSpawner.start(cmd); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() { // ends with the child, which its lab waits for
		defer close(p.done)
		p.err = cmd.Wait()
		p.at = time.Now()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill kills p with SIGKILL, waits for its end, and returns when it was killed.
func (p *process) kill() time.Time {
	at := time.Now()
	_ = p.cmd.Process.Kill() // fails only for a process that has ended
	<-p.done
	return at
}

// stop stops p with SIGSTOP and waits until all of it stands still.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	eventually(t, 5*time.Second, "the process stops", func() error {
		if s := stateOf(p.pid()); s != "T" {
			return fmt.Errorf("state %q", s)
		}
		return nil
	})
}

// cont lets p go on.
func (p *process) cont(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGCONT) }

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %d: %v", s, p.pid(), err)
	}
}

// exit waits for p's end, at most for limit, and returns its exit code; -1 if
// a signal ended it.
func (p *process) exit(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("%s still runs after %v; it said:\n%s", p.cmd.Args, limit, p.said())
		return 0
	}
}

// said returns p's standard error so far.
func (p *process) said() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// stateOf returns the state letter of process pid, "" if there is none.
func stateOf(pid int) string {
	fields := statFields(pid)
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// statFields returns /proc/PID/stat from the third field on.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	if !ok {
		return nil
	}
	return strings.Fields(rest)
}

// cpu returns how much processor time pid has used.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	fields := statFields(pid)
	if len(fields) < 13 {
		t.Fatalf("no process %d", pid)
	}
	var ticks int
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on every Linux
}

// resident returns the resident memory of pid in bytes.
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}

// descriptors counts the open descriptors of pid by kind: memfd, unix, inet,
// file, and the kernel's anonymous ones by name.
func descriptors(pid int) (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	unix, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	if err != nil {
		return nil, err
	}
	kinds := map[string]int{}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		kinds[kindOf(target, unix)]++
	}
	return kinds, nil
}

func kindOf(target string, unix []byte) string {
	switch kind, rest, _ := strings.Cut(target, ":"); {
	case strings.HasPrefix(target, "/memfd:"):
		return "memfd"
	case kind == "socket" && bytes.Contains(unix, []byte(" "+strings.Trim(rest, "[]")+" ")),
		kind == "socket" && bytes.Contains(unix, []byte(" "+strings.Trim(rest, "[]")+"\n")):
		return "unix"
	case kind == "socket":
		return "inet"
	case kind == "anon_inode":
		return rest
	case kind == "pipe":
		return "pipe"
	}
	return "file"
}

// shared counts the mappings of memfds in pid.
func shared(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return bytes.Count(b, []byte("/memfd:")), err
}

// An application is this binary in one of its roles. It answers line by line.
type application struct {
	*process
	stdin io.WriteCloser
	lines chan string // its output; closed at its end
}

// command returns a command that runs this binary in a role.
func command(role string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic("BUG: e2e: " + err.Error())
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GOMAXPROCS=2")
	return cmd
}

// say gives the application a line.
func (a *application) say(t testing.TB, line string) {
	t.Helper()
	if _, err := io.WriteString(a.stdin, line+"\n"); err != nil {
		t.Fatalf("to the application: %v", err)
	}
}

// expect waits for the application's next line, which must begin with word, and
// returns the rest of it.
func (a *application) expect(t testing.TB, limit time.Duration, word string) string {
	t.Helper()
	select {
	case line, ok := <-a.lines:
		rest, good := strings.CutPrefix(line, word)
		if !ok || !good {
			t.Fatalf("the application said %q (%v), want %q; log:\n%s", line, ok, word, a.said())
		}
		return strings.TrimSpace(rest)
	case <-time.After(limit):
		t.Fatalf("the application has not said %q within %v; log:\n%s", word, limit, a.said())
		return ""
	}
}

// port waits until the application listens, and returns where.
func (a *application) port(t testing.TB) fabric.Port {
	t.Helper()
	port, err := strconv.ParseUint(a.expect(t, stepLimit, "listening"), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return fabric.Port(port)
}

// eventually waits until check returns nil; it fails t after limit.
func eventually(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	if err := await(limit, check); err != nil {
		t.Fatalf("not within %v: %s: %v", limit, what, err)
	}
}

// errGiveUp in check's error makes await return at once.
var errGiveUp = errors.New("no use in waiting")

// await calls check until it returns nil, and returns its last error after
// limit. It polls another process's state, which has no event to wait on.
func await(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || errors.Is(err, errGiveUp) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}
