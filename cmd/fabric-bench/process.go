package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// children are the processes of a measurement and the directory of their files. They belong to one
// goroutine, locked to its thread: they die with it, however this process ends.
type children struct {
	dir string
	all []*process
}

// A process is one child.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	log  string
	stop syscall.Signal // ends it in order; 0: kill it
}

// stopLimit bounds the time in which a server ends in order.
const stopLimit = 10 * time.Second

// childOf returns a command that dies with this thread and has neither the terminal's signals nor
// fabricd's variables in its environment.
func childOf(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FABRIC_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// spawn starts a program. A process of this name that has ended gives its place, and its log goes on.
func (c *children) spawn(name string, argv ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(c.dir, name+".log")}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = childOf(argv...)
	p.cmd.Stderr = log
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	c.all = append(slices.DeleteFunc(c.all, func(o *process) bool { return o.name == name }), p)
	return p, nil
}

// line returns the next line of the process's output; it ends with the process.
func (p *process) line() (string, error) {
	if p.out.Scan() {
		return p.out.Text(), nil
	}
	return "", errors.Join(fmt.Errorf("%s has ended", p.name), p.out.Err())
}

// say writes a line to the process.
func (p *process) say(line string) error {
	_, err := io.WriteString(p.in, line+"\n")
	return err
}

// ask writes a line and returns the answering one.
func (p *process) ask(line string) (string, error) {
	if err := p.say(line); err != nil {
		return "", errors.Join(fmt.Errorf("%s has ended", p.name), err)
	}
	return p.line()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// running reports whether the process has not ended. It leaves the exit status to end.
func (p *process) running() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.pid(), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo == 0
}

// end ends the process and waits for it.
func (p *process) end() {
	p.in.Close()
	kill := func() { _ = p.cmd.Process.Kill() } // it fails only for a process that has ended
	if p.stop == 0 {
		kill()
	} else {
		_ = p.cmd.Process.Signal(p.stop) // the same
		defer time.AfterFunc(stopLimit, kill).Stop()
	}
	_ = p.cmd.Wait() // the exit status is known
}

// listensAt waits until the process's network namespace has a socket that listens at a port.
func (p *process) listensAt(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return untilEvery(ctx, pollEvery, func() error {
		switch {
		case !p.running():
			return final{fmt.Errorf("%s has ended: %s", p.name, p.tail(1))}
		case !tools.Listens(strconv.Itoa(p.pid()), port):
			return fmt.Errorf("%s does not listen at port %d", p.name, port)
		}
		return nil
	})
}

// tail returns the last lines of the process's log.
func (p *process) tail(lines int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// tails returns the last lines of every log, for a failure.
func (c *children) tails(lines int) string {
	var b strings.Builder
	for _, p := range c.all {
		if text := p.tail(lines); text != "" {
			fmt.Fprintf(&b, "--- %s\n%s\n", p.name, text)
		}
	}
	return strings.TrimSpace(b.String())
}

// toLog returns the command that runs a program with its output in its log.
func toLog(argv ...string) []string {
	return append([]string{"sh", "-c", `exec "$@" >&2`, "sh"}, argv...)
}

// serve starts a server and waits until it listens at a port. stop ends it in order; 0: it is killed.
func (c *children) serve(ctx context.Context, name string, port int, stop syscall.Signal, argv ...string) (*process, error) {
	p, err := c.spawn(name, argv...)
	if err != nil {
		return nil, err
	}
	p.stop = stop
	return p, p.listensAt(ctx, port)
}

// pairLimit bounds one run of a third-party benchmark.
const pairLimit = time.Minute

// runPair runs both ends of a third-party benchmark and returns the client's output.
func (c *children) runPair(ctx context.Context, pair tools.Pair) ([]byte, error) {
	if _, err := tools.Find(pair.Program); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pairLimit)
	defer cancel()
	server, err := c.serve(ctx, pair.Program, pair.Port, 0, toLog(pair.Server...)...)
	if server != nil {
		defer server.end()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the server: %w", pair.Program, err)
	}
	return output(ctx, pairLimit, pair.Client...)
}

// output runs a program to its end and returns its output.
func output(ctx context.Context, limit time.Duration, argv ...string) ([]byte, error) {
	cmd := childOf(argv...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s %s", strings.Join(argv, " "), errors.Join(err, ctx.Err()), clip(errs.String()), clip(out.String()))
	}
	return out.Bytes(), nil
}

// close ends all processes, the last one first, and removes their files.
func (c *children) close() error {
	for _, p := range slices.Backward(c.all) {
		p.end()
	}
	return os.RemoveAll(c.dir)
}
