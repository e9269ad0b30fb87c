package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// appServers are the servers of unmodified applications, on the second machine of a lab, and the
// paths to them. Each is started at its first use.
type appServers struct {
	lab     *lab
	running map[string]*appServer
}

// An appServer is one server.
type appServer struct {
	name  string
	at    string // host:port on its machine
	paths map[string]appPath
}

// An appPath is one path to a server.
type appPath struct {
	at      string     // address that clients dial on their machine
	helpers []*process // the processes that carry the bytes
}

// server returns the server of this name, once it answers.
func (a *appServers) server(ctx context.Context, name string) (*appServer, error) {
	if s := a.running[name]; s != nil {
		return s, nil
	}
	port, err := tools.FreePort()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(a.lab.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &appServer{name: name, at: net.JoinHostPort(a.lab.addrs[1], strconv.Itoa(port)), paths: map[string]appPath{}}
	start := map[string]func(context.Context, string, string) error{
		"iperf3": a.startIperf, "postgres": a.startPostgres, "redis": a.startRedis, "nginx": a.startNginx,
	}[name]
	if err := start(ctx, dir, s.at); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a.running[name] = s
	return s, nil
}

// reach returns the address that clients of a carrier dial, and the carrying processes.
func (a *appServers) reach(ctx context.Context, s *appServer, carrier string) (string, []*process, error) {
	p, ok := s.paths[carrier]
	if !ok {
		var err error
		switch carrier {
		case carryDirect:
			p.at = s.at
		case carryStunnel:
			p.at, p.helpers, err = a.lab.startTunnels(ctx, s.name, s.at)
		default:
			p.at, p.helpers, err = a.forward(s)
		}
		if err != nil {
			return "", nil, err
		}
		s.paths[carrier] = p
	}
	return p.at, p.helpers, nil
}

// forward makes the server's fabricd expose it, and the other one forward to it. The fabricds carry
// the bytes themselves; the commands only control them.
func (a *appServers) forward(s *appServer) (string, []*process, error) {
	l := a.lab
	if _, err := l.gateway(1, s.name, "expose", s.name, s.at); err != nil {
		return "", nil, err
	}
	at, err := l.gateway(0, s.name, "forward", "127.0.0.1:0", s.name)
	return at, l.bothFabricds(), err
}

// gateway runs `fabricd expose` or forward on one side, until the lab ends, and returns its
// listening address.
func (l *lab) gateway(side int, name, kind string, args ...string) (string, error) {
	p, err := l.start(side, name+"-"+kind, l.exe, append([]string{kind, "--json", "--admin", l.fabricds[side].admin()}, args...)...)
	if err != nil {
		return "", err
	}
	line, err := p.line()
	if err != nil {
		return "", err
	}
	var began struct{ Event, At string }
	if err := json.Unmarshal([]byte(line), &began); err != nil || began.Event != "started" {
		return "", fmt.Errorf("fabricd %s says %q", kind, line)
	}
	return began.At, nil
}

// serve starts a server on the second machine, with its output in its log, and waits until it
// listens at an address.
func (l *lab) serve(ctx context.Context, name, at string, stop syscall.Signal, argv ...string) error {
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	_, err = l.children.serve(ctx, name, n, stop, l.argv(1, toLog(argv...)...)...)
	return err
}

func (a *appServers) startIperf(ctx context.Context, _, at string) error {
	if _, err := tools.Find("iperf3"); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(at) // net.JoinHostPort made it
	return a.lab.serve(ctx, "iperf3-server", at, syscall.SIGTERM, "iperf3", "-s", "-B", host, "-p", port)
}

func (a *appServers) startRedis(ctx context.Context, dir, at string) error {
	if _, err := tools.Find("redis-server"); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(at) // net.JoinHostPort made it
	return a.lab.serve(ctx, "redis-server", at, syscall.SIGTERM, "redis-server", "--bind", host, "--port", port, "--protected-mode", "no", "--save", "", "--dir", dir)
}

// pgBin returns the path of a PostgreSQL program on Debian; those in PATH are wrappers.
func pgBin(name string) string {
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is valid
	if len(all) == 0 {
		return name
	}
	return all[len(all)-1]
}

// startPostgres starts PostgreSQL with pgbench's tables. Its server refuses to run as root.
func (a *appServers) startPostgres(ctx context.Context, dir, at string) error {
	for _, name := range []string{pgBin("initdb"), pgBin("pgbench"), "setpriv"} {
		if _, err := tools.Find(name); err != nil {
			return err
		}
	}
	host, port, _ := net.SplitHostPort(at) // net.JoinHostPort made it
	var as []string
	if os.Geteuid() == 0 {
		as = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"}
		if _, err := a.lab.output(ctx, time.Minute, 1, "chown", "postgres", dir); err != nil {
			return err
		}
	}
	data := filepath.Join(dir, "data")
	if _, err := a.lab.output(ctx, time.Minute, 1, append(as[:len(as):len(as)], pgBin("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N")...); err != nil {
		return err
	}
	hba := filepath.Join(data, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all all 0.0.0.0/0 trust\n"), 0o644); err != nil { // the two machines are namespaces
		return err
	}
	err := a.lab.serve(ctx, "postgres-server", at, syscall.SIGINT, append(as[:len(as):len(as)], pgBin("postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses="+host, "-c", "unix_socket_directories=", "-c", "fsync=off")...)
	if err != nil {
		return err
	}
	return untilEvery(ctx, pollEvery, func() error { // it listens before it answers
		_, err := a.lab.output(ctx, time.Minute, 1, pgBin("pgbench"), "-i", "-q", "-s", "1", "-h", host, "-p", port, "-U", "postgres", "postgres")
		return err
	})
}

const nginxConfig = `daemon off; master_process off; pid pid; error_log stderr;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000; sendfile on;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server { listen %s; root %s; }
}
`

// The files of nginx; the large ones are sparse.
const (
	fileBytes    = 1 << 30
	smallerBytes = 32 << 20
)

func (a *appServers) startNginx(ctx context.Context, dir, at string) error {
	if _, err := tools.Find("nginx"); err != nil {
		return err
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, nginxConfig, at, dir), 0o600),
		os.WriteFile(filepath.Join(dir, "small"), []byte("served\n"), 0o600),
		hole(filepath.Join(dir, "file"), fileBytes), hole(filepath.Join(dir, "smaller"), smallerBytes))
	if err != nil {
		return err
	}
	return a.lab.serve(ctx, "nginx-server", at, syscall.SIGTERM, "nginx", "-p", dir, "-e", "stderr", "-c", "conf")
}

// hole creates a sparse file of n zeros.
func hole(path string, n int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(n), f.Close())
}
