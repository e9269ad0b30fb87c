package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A lab is the environment of a measurement, two machines simulated on one: a network namespace
// each, with a veth pair or a long network between them, a fabricd on each, and the communicating
// programs. It runs on one goroutine, locked to its thread: the children die with it.
type lab struct {
	exe, self string
	dir       string
	spaces    [2]string // names of the namespaces; empty: loopback
	addrs     [2]string // IP addresses
	ports     [2]int    // data ports of the fabricds
	fabricds  [2]*process
	carriers  map[string]*carrier
	all       []*process
}

// A carrier is two applications, and the helpers that carry their bytes.
type carrier struct {
	client, server *process
	helpers        []*process // their processor time counts too
}

// labStart bounds the time in which a process of the lab starts.
const labStart = 20 * time.Second

// newLab starts a lab. ctx bounds its start, and its end ends the lab's processes.
func newLab(ctx context.Context, o *runOptions, s setup) (_ *lab, err error) {
	l := &lab{addrs: [2]string{"127.0.0.1", "127.0.0.1"}, ports: [2]int{7700, 7700}, carriers: map[string]*carrier{}}
	if l.exe, err = findFabricd(o.fabricd); err != nil {
		return nil, err
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "fabric-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, l.tails()), l.close())
		}
	}()
	if err := os.Chmod(l.dir, 0o755); err != nil { // for PostgreSQL, which runs as another user
		return nil, err
	}
	if o.loopback {
		for i := range l.ports {
			if l.ports[i], err = freePort(); err != nil {
				return nil, err
			}
		}
	} else if err := l.makeSpaces(ctx, s.way); err != nil {
		return nil, err
	}
	return l, l.startFabricds(ctx, s.flags())
}

func (l *lab) socket(side int) string {
	return filepath.Join(l.dir, strconv.Itoa(side), "app.sock")
}

func (l *lab) admin(side int) string {
	return filepath.Join(l.dir, strconv.Itoa(side), "admin.sock")
}

// startFabricds creates a cluster of two and waits until both see each other.
func (l *lab) startFabricds(ctx context.Context, flags []string) error {
	token := filepath.Join(l.dir, "join.token")
	state := func(side int) string { return filepath.Join(l.dir, strconv.Itoa(side), "state") }
	out, err := exec.CommandContext(ctx, l.exe, "init", "--name", "a", "--state-dir", state(0), "--token-file", token).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fabricd init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for side, name := range []string{"a", "b"} {
		args := append([]string{"run", "--name", name, "--state-dir", state(side), "--bind", l.addrs[side],
			"--gossip-port", "0", "--data-port", strconv.Itoa(l.ports[side]), "--socket", l.socket(side),
			"--admin", l.admin(side), "--log-format", "json"}, flags...)
		if side == 0 {
			args = append(args, "--role", "host")
		} else {
			args = append(args, "--join", net.JoinHostPort(l.addrs[0], strconv.Itoa(l.ports[0])), "--token-file", token)
		}
		if l.fabricds[side], err = l.start(side, "fabricd-"+name, l.exe, args...); err != nil {
			return err
		}
		if err := l.joined(ctx, side, side+1); err != nil {
			return err
		}
	}
	return l.joined(ctx, 0, 2)
}

// joined waits until the fabricd of a side sees n nodes.
func (l *lab) joined(ctx context.Context, side, n int) error {
	ctx, cancel := context.WithTimeout(ctx, labStart)
	defer cancel()
	return untilEvery(ctx, pollEvery, func() error {
		out, err := exec.CommandContext(ctx, l.exe, "nodes", "--json", "--admin", l.admin(side)).Output()
		if err != nil {
			return err
		}
		var body struct{ Nodes []struct{} }
		if err := json.Unmarshal(out, &body); err != nil {
			return err
		}
		if len(body.Nodes) != n {
			return fmt.Errorf("%d nodes, want %d", len(body.Nodes), n)
		}
		return nil
	})
}

// A process is a child of the lab.
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

// argv returns the command that runs a program on a side.
func (l *lab) argv(side int, argv ...string) []string {
	if l.spaces[side] == "" {
		return argv
	}
	return append([]string{"ip", "netns", "exec", l.spaces[side]}, argv...)
}

// start starts a program on a side.
func (l *lab) start(side int, name, program string, args ...string) (*process, error) {
	argv := l.argv(side, append([]string{program}, args...)...)
	p := &process{name: name, log: filepath.Join(l.dir, name+".log")}
	log, err := os.Create(p.log)
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
	l.all = append(l.all, p)
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

// tails returns the last lines of every log.
func (l *lab) tails() string {
	var b strings.Builder
	for _, p := range l.all {
		text, err := os.ReadFile(p.log)
		if err != nil || len(text) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", p.name, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return strings.TrimSpace(b.String())
}

// close ends all processes, the last one first, and removes namespaces and files.
func (l *lab) close() (err error) {
	for i := len(l.all) - 1; i >= 0; i-- {
		l.all[i].end()
	}
	for _, name := range l.spaces {
		if name != "" {
			err = errors.Join(err, ip(context.Background(), "netns del "+name))
		}
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}
