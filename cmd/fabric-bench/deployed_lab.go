package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// A deployedLab is two machines, as far as one machine can be two: a network
// namespace each, with a veth pair between them, a fabricd on each, and beside
// them what the baselines need. It runs on one goroutine, which keeps its thread:
// the children die with it.
type deployedLab struct {
	exe, self string
	dir       string
	spaces    [2]string // names of the namespaces; empty: loopback
	addrs     [2]string // IP addresses
	fabricds  [2]*labProcess
	servers   map[string]*labProcess // by carrier
	clients   map[string]*labProcess
	tunnels   [2]*labProcess // stunnel: the client's and the server's side
	all       []*labProcess
}

// A labProcess is a child of the lab.
type labProcess struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	log  string
}

// labStart bounds what a process of the lab takes to begin.
const labStart = 20 * time.Second

func newDeployedLab(ctx context.Context, o *deployedOptions) (_ *deployedLab, err error) {
	l := &deployedLab{addrs: [2]string{"127.0.0.1", "127.0.0.1"}, servers: map[string]*labProcess{}, clients: map[string]*labProcess{}}
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
	if !o.loopback {
		if err := l.makeSpaces(ctx); err != nil {
			return nil, err
		}
	}
	if err := l.startFabricds(ctx, o); err != nil {
		return nil, err
	}
	return l, nil
}

// makeSpaces makes two namespaces and the way between them.
func (l *deployedLab) makeSpaces(ctx context.Context) error {
	l.addrs = [2]string{"10.79.0.1", "10.79.0.2"}
	for i, side := range []string{"a", "b"} {
		name := fmt.Sprintf("fb%d%s", os.Getpid(), side)
		if err := ip(ctx, "netns add "+name); err != nil {
			return err
		}
		l.spaces[i] = name
	}
	a, b := l.spaces[0], l.spaces[1]
	for _, line := range []string{
		fmt.Sprintf("-n %s link add eth0 type veth peer name eth0 netns %s", a, b),
		fmt.Sprintf("-n %s addr add %s/24 dev eth0", a, l.addrs[0]),
		fmt.Sprintf("-n %s addr add %s/24 dev eth0", b, l.addrs[1]),
		fmt.Sprintf("-n %s link set eth0 up", a), fmt.Sprintf("-n %s link set eth0 up", b),
		fmt.Sprintf("-n %s link set lo up", a), fmt.Sprintf("-n %s link set lo up", b),
	} {
		if err := ip(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, line string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (l *deployedLab) socket(side int) string {
	return filepath.Join(l.dir, strconv.Itoa(side), "app.sock")
}

// startFabricds makes a cluster of two and waits until both see each other.
func (l *deployedLab) startFabricds(ctx context.Context, o *deployedOptions) error {
	ports := [2]int{7700, 7700}
	if l.spaces[0] == "" {
		for i := range ports {
			port, err := freePort()
			if err != nil {
				return err
			}
			ports[i] = port
		}
	}
	token := filepath.Join(l.dir, "join.token")
	state := func(side int) string { return filepath.Join(l.dir, strconv.Itoa(side), "state") }
	out, err := exec.CommandContext(ctx, l.exe, "init", "--name", "a", "--state-dir", state(0), "--token-file", token).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fabricd init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for side, name := range []string{"a", "b"} {
		args := append([]string{"run", "--name", name, "--state-dir", state(side), "--bind", l.addrs[side],
			"--gossip-port", "0", "--data-port", strconv.Itoa(ports[side]), "--socket", l.socket(side),
			"--admin", filepath.Join(l.dir, strconv.Itoa(side), "admin.sock"), "--log-format", "json"}, o.daemonFlags()...)
		if side == 0 {
			args = append(args, "--role", "host")
		} else {
			args = append(args, "--join", net.JoinHostPort(l.addrs[0], strconv.Itoa(ports[0])), "--token-file", token)
		}
		p, err := l.start(side, "fabricd-"+name, l.exe, args...)
		if err != nil {
			return err
		}
		l.fabricds[side] = p
		if err := l.joined(ctx, side); err != nil {
			return err
		}
	}
	return l.joined(ctx, 0)
}

// joined waits until the fabricd of a side sees as many nodes as were started.
func (l *deployedLab) joined(ctx context.Context, side int) error {
	want := 1
	if l.fabricds[1] != nil {
		want = 2
	}
	ctx, cancel := context.WithTimeout(ctx, labStart)
	defer cancel()
	return untilEvery(ctx, pollEvery, func() error {
		out, err := exec.CommandContext(ctx, l.exe, "nodes", "--json", "--admin", filepath.Join(l.dir, strconv.Itoa(side), "admin.sock")).Output()
		if err != nil {
			return err
		}
		var body struct {
			Nodes []struct {
				State string `json:"state"`
			} `json:"nodes"`
		}
		if err := json.Unmarshal(out, &body); err != nil {
			return err
		}
		if len(body.Nodes) != want {
			return fmt.Errorf("%d nodes, want %d", len(body.Nodes), want)
		}
		return nil
	})
}

// start starts a program on a side.
func (l *deployedLab) start(side int, name, program string, args ...string) (*labProcess, error) {
	argv := append([]string{program}, args...)
	if l.spaces[side] != "" {
		argv = append([]string{"ip", "netns", "exec", l.spaces[side]}, argv...)
	}
	p := &labProcess{name: name, log: filepath.Join(l.dir, name+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = (&fleet{}).command(argv[1:]...)
	if p.cmd.Path, err = exec.LookPath(argv[0]); err != nil {
		return nil, err
	}
	p.cmd.Args[0], p.cmd.Err = argv[0], nil
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

// line returns the next line that the process prints; it ends with the process.
func (p *labProcess) line() (string, error) {
	if p.out.Scan() {
		return p.out.Text(), nil
	}
	return "", errors.Join(fmt.Errorf("%s has ended", p.name), p.out.Err())
}

// open starts the two applications of a carrier.
func (l *deployedLab) open(ctx context.Context, carrier string) error {
	listen := net.JoinHostPort(l.addrs[1], "0")
	if carrier == carryStunnel {
		listen = "127.0.0.1:0"
	}
	server, err := l.start(1, carrier+"-server", l.self, deployedEnd, "--carrier", carrier, "--socket", l.socket(1), "--listen", listen)
	if err != nil {
		return err
	}
	at, err := server.line()
	if err != nil {
		return err
	}
	l.servers[carrier] = server
	if carrier == carryStunnel {
		if at, err = l.startTunnels(ctx, at); err != nil {
			return err
		}
	}
	l.clients[carrier], err = l.start(0, carrier+"-client", l.self, deployedEnd, "--carrier", carrier, "--socket", l.socket(0), "--dial", at)
	return err
}

// startTunnels starts a stunnel on each side and returns the address at the client's
// that leads to target.
func (l *deployedLab) startTunnels(ctx context.Context, target string) (string, error) {
	program, err := tools.Find("stunnel")
	if err != nil {
		return "", err
	}
	certificate, err := writeCertificate(l.dir)
	if err != nil {
		return "", err
	}
	const near, far = "127.0.0.1:17060", "17061"
	configs := [2]string{
		fmt.Sprintf("client = yes\n[t]\naccept = %s\nconnect = %s\n", near, net.JoinHostPort(l.addrs[1], far)),
		fmt.Sprintf("cert = %s\n[t]\naccept = %s\nconnect = %s\n", certificate, net.JoinHostPort(l.addrs[1], far), target),
	}
	for side, text := range configs {
		file := filepath.Join(l.dir, fmt.Sprintf("stunnel-%d.conf", side))
		text = "foreground = yes\npid =\nsyslog = no\ndebug = 4\nsslVersion = TLSv1.3\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n" + text
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		if l.tunnels[side], err = l.start(side, fmt.Sprintf("stunnel-%d", side), program, file); err != nil {
			return "", err
		}
	}
	return near, l.waitListening(ctx, near)
}

// waitListening waits until the first side's stunnel listens: by its process's own
// table of sockets, since a connection would be one that counts.
func (l *deployedLab) waitListening(ctx context.Context, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, labStart)
	defer cancel()
	return untilEvery(ctx, pollEvery, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", l.tunnels[0].cmd.Process.Pid))
		if err == nil && !strings.Contains(string(text), fmt.Sprintf(":%04X 00000000:0000 0A", n)) {
			err = errors.New("stunnel does not listen")
		}
		return err
	})
}

// measure carries out one order over a carrier. cpu is the processor time of all
// processes that carried it, meanwhile.
func (l *deployedLab) measure(carrier string, next order) (result outcome, cpu time.Duration, err error) {
	client := l.clients[carrier]
	text, err := json.Marshal(next)
	if err != nil {
		return result, 0, err
	}
	if _, err := client.in.Write(append(text, '\n')); err != nil {
		return result, 0, err
	}
	if line, err := client.line(); err != nil || line != "ready" {
		return result, 0, errors.Join(fmt.Errorf("%s says %q", client.name, line), err)
	}
	before, err := l.spent(carrier)
	if err != nil {
		return result, 0, err
	}
	if _, err := client.in.Write([]byte("\n")); err != nil {
		return result, 0, err
	}
	line, err := client.line()
	if err != nil {
		return result, 0, err
	}
	after, err := l.spent(carrier)
	if err == nil {
		err = json.Unmarshal([]byte(line), &result)
	}
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	return result, after - before, err
}

// spent is the processor time of all processes of a carrier.
func (l *deployedLab) spent(carrier string) (sum time.Duration, err error) {
	of := []*labProcess{l.servers[carrier], l.clients[carrier]}
	switch carrier {
	case carryFabric:
		of = append(of, l.fabricds[:]...)
	case carryStunnel:
		of = append(of, l.tunnels[:]...)
	}
	for _, p := range of {
		d, err := processorTime(p.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// tails returns the last lines of every log.
func (l *deployedLab) tails() string {
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
func (l *deployedLab) close() (err error) {
	for i := len(l.all) - 1; i >= 0; i-- {
		p := l.all[i]
		p.in.Close()
		_ = p.cmd.Process.Kill() // it fails only for a process that has ended
		_ = p.cmd.Wait()         // how it ended is known
	}
	for _, name := range l.spaces {
		if name != "" {
			err = errors.Join(err, ip(context.Background(), "netns del "+name))
		}
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// canMakeSpaces reports whether this process may make network namespaces.
func canMakeSpaces() bool {
	_, err := exec.LookPath("ip")
	return runtime.GOOS == "linux" && os.Geteuid() == 0 && err == nil
}

// interrupt ends what a measurement waits for.
func (l *deployedLab) interrupt() {
	for _, p := range l.clients {
		_ = p.cmd.Process.Kill() // it fails only for a process that has ended
	}
}

// processorTime is the user and system time of a process and its threads so far.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name is in parentheses, and may have any character.
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

// writeCertificate writes a certificate and its key, as stunnel reads them.
func writeCertificate(dir string) (string, error) {
	cert, err := selfSigned()
	if err != nil {
		return "", err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return "", err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})...)
	file := filepath.Join(dir, "stunnel.pem")
	return file, os.WriteFile(file, text, 0o600)
}
